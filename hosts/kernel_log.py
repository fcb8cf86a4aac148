"""The kernel's log as it grows: events of GPUs, and processes killed for want of memory.

A thread of its own reads /dev/kmsg from its end on; what was there before the daemon is not news.
It sleeps in `poll` and costs nothing while the kernel is quiet.
"""

from __future__ import annotations

import errno
import os
import select
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

from hosts.device_events import DeviceEvent
from hosts.facts import Problem
from hosts.kernel_lines import Lines, parse_record
from hosts.roots import Roots

RECORD = 8192
"""A record never is longer; a read with a smaller buffer would fail."""
_SAME = 1.0
"""Seconds within which an event equal to the last of its kind is the same storm (page faults come by the thousand)."""
_HELD = 0.25
"""Seconds that a line may wait for the next one, which names the process."""
_BURST = 256
"""Records read before the thread looks whether it is to end."""


class KernelLog:
    """Follows the log. `start`, then `deliver` is called from the thread with each event, until `close`."""

    def __init__(
        self,
        deliver: Callable[[DeviceEvent], None],
        gpus: Callable[[], Collection[str]],
        *,
        roots: Roots | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`gpus` are the PCI addresses that matter; both callables are called in the thread and must not block."""
        self._deliver = deliver
        self._path: Path = (roots or Roots()).dev / "kmsg"
        self._lines = Lines(gpus)
        self._now = now
        self._last: dict[tuple[object, ...], float] = {}
        self._thread: threading.Thread | None = None
        self._wake: int | None = None
        self.lost = 0
        """How often the kernel's buffer went round before it was read."""

    def start(self) -> Problem | None:
        """Begin at the log's end. A problem, once, where it may not be read: the rest works without it."""
        try:
            log = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError as error:
            return _unreadable(self._path, error)
        try:
            os.lseek(log, 0, os.SEEK_END)
        except OSError as error:
            if error.errno != errno.ESPIPE:  # a pipe has no end to go to
                os.close(log)
                return _unreadable(self._path, error)
        wait, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._follow, args=(log, wait), name="outrider-kernel-log", daemon=True)
        self._thread.start()
        return None

    def close(self) -> None:
        """End the thread. May be called twice."""
        if self._wake is not None:
            os.close(self._wake)
            self._wake = None
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(5.0)

    def _follow(self, log: int, wait: int) -> None:
        poll = select.poll()
        poll.register(log, select.POLLIN)
        poll.register(wait, select.POLLIN | select.POLLHUP)
        try:
            while True:
                ready = dict(poll.poll(int(_HELD * 1000) if self._lines.waiting else None))
                if wait in ready:
                    return
                if not ready:
                    self._hand_on(list(self._lines.flush()))
                elif not self._drain(log):
                    return
        finally:
            os.close(log)
            os.close(wait)

    def _drain(self, log: int) -> bool:
        """Read what there is; False when there will never be more."""
        for _ in range(_BURST):
            try:
                raw = os.read(log, RECORD)
            except BlockingIOError:
                return True
            except InterruptedError:
                continue
            except OSError as error:
                if error.errno == errno.EPIPE:  # overrun: the next read goes on with the oldest that is left
                    self.lost += 1
                    continue
                if error.errno == errno.EINVAL:  # a record larger than any kernel makes: it is skipped
                    continue
                return False
            if not raw:
                return False
            record = parse_record(raw)
            if record is not None:
                self._hand_on(list(self._lines.feed(record, self._now())))
        return True

    def _hand_on(self, events: list[DeviceEvent]) -> None:
        for event in events:
            key = (event.kind, event.pci, event.number, event.pid)
            before = self._last.get(key)
            if before is not None and event.at - before < _SAME:
                continue
            if len(self._last) > 1000:
                self._last.clear()
            self._last[key] = event.at
            self._deliver(event)


def _unreadable(path: Path, error: OSError) -> Problem:
    return Problem(
        "kernel_log_unreadable",
        None,
        f"{path}: {error.strerror}: GPU errors and out-of-memory kills in the kernel's log go unseen",
        "run the daemon as root, or give it CAP_SYSLOG and a readable /dev/kmsg",
    )
