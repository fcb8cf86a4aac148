"""Knowing at once that an engine's process ended: a pidfd in the event loop.

Podman tells of a death 70-240 ms late, in batches, and not at all when its service or
conmon is gone. The kernel tells at once, whoever the parent is.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

from containers import memory_kills


class ExitWatch:
    """Calls back once when the process ends. `close` ends the watch."""

    def __init__(self, pid: int, ended: Callable[[], None]) -> None:
        """Watch `pid`; a process that is gone already counts as ended (the callback comes soon, not now)."""
        self._loop = asyncio.get_running_loop()
        self._ended = ended
        self._fd: int | None = None
        self._group = memory_kills.group_of(pid)
        self.kills: memory_kills.MemoryKills | None = None
        """What the memory control group of its container had counted when it ended; None until then, or unknown."""
        try:
            self._fd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._loop.call_soon(ended)
        else:
            self._loop.add_reader(self._fd, self._on_exit)

    def _on_exit(self) -> None:
        self.kills = memory_kills.read(self._group)  # now: the group goes with the container
        self.close()
        self._ended()

    def kill(self) -> bool:
        """Kill the process, whatever its pid has become since; False when we may not. One that has gone is fine."""
        return self.send(signal.SIGKILL)

    def send(self, number: signal.Signals) -> bool:
        """Send it a signal; as `kill`."""
        if self._fd is None:
            return True
        try:
            signal.pidfd_send_signal(self._fd, number)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return True

    def close(self) -> None:
        """End the watch; may be called twice."""
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None
