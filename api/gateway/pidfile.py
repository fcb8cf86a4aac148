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
        self._path = path
        while True:
            try:
                self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            except PermissionError as error:
                raise Conflict(
                    f"{path} is another user's: {error.strerror}",
                    hint=f"a {what} ran as that user; once it has ended, remove {path}",
                ) from error
            try:
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                holder = os.read(self._handle, 32).decode(errors="replace").strip()
                os.close(self._handle)
                raise Conflict(
                    f"another {what} already runs on {path.parent}" + (f" (pid {holder})" if holder else ""),
                    hint=f"stop it first, or use another state folder (--state-dir); the lock is {path}",
                ) from error
            if self._is_still_there():
                break
            os.close(self._handle)  # its last holder removed the file between our open and our lock
        os.ftruncate(self._handle, 0)
        os.write(self._handle, f"{os.getpid()}\n".encode())

    def _is_still_there(self) -> bool:
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            return False
        mine = os.fstat(self._handle)
        return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)

    def close(self) -> None:
        """Remove the file, then drop the lock: whoever opened it before finds that it is not there any more."""
        self._path.unlink(missing_ok=True)
        os.close(self._handle)
