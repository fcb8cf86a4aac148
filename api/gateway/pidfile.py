"""`gateway.pid`: who runs here, and the lock that keeps a second one out."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from orchestrator.errors import Conflict


class PidFile:
    """Holds an exclusive lock for as long as it is open; the kernel drops it with the process."""

    def __init__(self, path: Path, what: str) -> None:
        """Take the lock and write our pid. Raises `Conflict` naming who holds it."""
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(self._handle, 32).decode(errors="replace").strip()
            os.close(self._handle)
            raise Conflict(
                f"another {what} already runs on {path.parent}" + (f" (pid {holder})" if holder else ""),
                hint=f"stop it first, or use another state folder (--state-dir); the lock is {path}",
            ) from error
        os.ftruncate(self._handle, 0)
        os.write(self._handle, f"{os.getpid()}\n".encode())

    def close(self) -> None:
        """Empty the file and drop the lock. The file stays: removing it would race with the next one's lock."""
        os.ftruncate(self._handle, 0)
        os.close(self._handle)
