"""A program that takes memory, in a cgroup that lets it have no more than it may: it hurts nobody else."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.waiting import until_sync

MIB = 2**20
_CGROUPS = Path("/sys/fs/cgroup")
_PROGRAM = """
import sys
held = []
for line in sys.stdin:
    size = int(line)
    held = held[:0] if size == 0 else held
    if size:
        block = bytearray(size)
        block[::4096] = b"x" * len(block[::4096])
        held.append(block)
    print("done", flush=True)
"""


class Hog:
    """A context manager. `take` and `release` return when the memory is taken and given back."""

    def __init__(self, limit: int) -> None:
        v2 = (_CGROUPS / "cgroup.controllers").exists()
        self._group = (_CGROUPS if v2 else _CGROUPS / "memory") / f"outrider-hog-{secrets.token_hex(4)}"
        self._limit_file, self._used_file = (
            ("memory.max", "memory.current") if v2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        )
        self._limit = limit

    def __enter__(self) -> Self:
        self._group.mkdir()
        (self._group / self._limit_file).write_text(str(self._limit))
        self._child = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        (self._group / "cgroup.procs").write_text(str(self._child.pid))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.kill()
        self._child.communicate()

        def removed() -> bool:
            try:
                self._group.rmdir()
            except OSError:
                return False
            return True

        until_sync(removed, 10, "the hog's cgroup is gone")

    def take(self, size: int) -> None:
        """`size` bytes more."""
        self._tell(size)

    def release(self) -> None:
        """All of it."""
        self._tell(0)

    def _tell(self, size: int) -> None:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(f"{size}\n")
        self._child.stdin.flush()
        assert self._child.stdout.readline() == "done\n", "the hog did not get what its cgroup should let it have"

    @property
    def used(self) -> int:
        return int((self._group / self._used_file).read_text())


def resident(pid: int) -> int:
    """Bytes that a process has in memory; 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


class Meter(threading.Thread):
    """Writes a host's MemAvailable every few milliseconds: what `base` leaves beside the real hog and the real
    engines. Only those count, whatever else this machine does meanwhile."""

    def __init__(self, write: Callable[[int], None], base: int, reserve: int) -> None:
        super().__init__(daemon=True)
        self._write = write
        self._ended = threading.Event()
        self.reserve = reserve
        self.base = base
        self.hog: Hog | None = None
        self.pids: tuple[int, ...] = ()
        self.crossed_at: float | None = None
        """Monotonic seconds at which it last fell below the reserve."""

    def available(self) -> int:
        return self.base - (0 if self.hog is None else self.hog.used) - sum(map(resident, self.pids))

    def leave(self, size: int) -> None:
        """Set `base` so that `size` bytes more than the reserve are available now."""
        self.base += self.reserve + size - self.available()

    def run(self) -> None:
        low = False
        while not self._ended.is_set():
            now = self.available()
            if now < self.reserve and not low:
                self.crossed_at = time.monotonic()
            low = now < self.reserve
            self._write(now)
            self._ended.wait(0.005)

    def close(self) -> None:
        self._ended.set()
        self.join()
