"""Logs that end: a process keeps the file behind its own standard error small.

`outrider up` starts daemon and gateway with their standard error in a file. Nobody else could cap
it: the writer holds it open, and may go on for months after whoever started it is gone. So the writer
itself puts a new file in its place when it is full, and keeps the last one beside it as `NAME.1`. No
line is lost, but to a disk that is full: then whoever has something to say goes on all the same. Where
standard error is anything else (systemd's journal, a terminal, a file of somebody else's), nothing is
done. Nothing but the standard library: the gateway uses it too.
"""

from __future__ import annotations

import io
import os
import shutil
import stat
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

OLDER = ".1"
_FILES = (1, 2)


class LogFile(io.TextIOBase):
    """Standard error as a text stream, begun anew at `limit()` bytes if it is the file `path`."""

    def __init__(self, path: Path, limit: Callable[[], int]) -> None:
        super().__init__()
        self.limit = limit
        self._path = path
        self._lock = threading.Lock()
        self._ours = _same(_seen(2), _named(path))

    def write(self, text: str) -> int:
        with self._lock:
            if self._ours:
                self._make_room(len(text))
            with suppress(OSError):  # a full disk costs lines of the log; who has something to say goes on
                sys.stderr.write(text)
            return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            sys.stderr.flush()

    def writable(self) -> bool:
        return True

    def _make_room(self, size: int) -> None:
        now = _seen(2)
        if now is None or now.st_size == 0 or now.st_size + size <= self.limit():
            return
        self.flush()
        try:
            self._begin_anew(now)
        except OSError:  # no inode left, or a folder that is gone: a log that is cut off is better than a full disk
            with suppress(OSError):
                os.ftruncate(2, 0)

    def _begin_anew(self, now: os.stat_result) -> None:
        new = self._path.with_name(f"{self._path.name}.new")
        new.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        file = os.open(new, flags, stat.S_IMODE(now.st_mode))
        try:
            if _same(now, _named(self._path)):  # else somebody has moved it away already
                self._path.replace(self._path.with_name(self._path.name + OLDER))
            new.replace(self._path)
            for number in _FILES:
                if _same(now, _seen(number)):
                    os.dup2(file, number)
        finally:
            os.close(file)


def cut(path: Path, limit: int) -> bool:
    """Cap a log that another process appends to: copied to `NAME.1` and emptied; whether it was. Blocking.

    What is written between the two is lost. Raises OSError.
    """
    try:
        if path.stat().st_size <= limit:
            return False
    except FileNotFoundError:
        return False
    older = path.with_name(path.name + OLDER)
    try:
        with path.open("rb") as source, older.open("wb") as target:
            source.seek(-min(limit, path.stat().st_size), os.SEEK_END)
            shutil.copyfileobj(source, target)
    except OSError:
        older.unlink(missing_ok=True)  # half of it is of no use, and takes what is scarce
    os.truncate(path, 0)
    return True


def _seen(number: int) -> os.stat_result | None:
    """What a descriptor is; None when it is no regular file."""
    try:
        found = os.fstat(number)
    except OSError:
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def _named(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:
        return None


def _same(one: os.stat_result | None, other: os.stat_result | None) -> bool:
    return one is not None and other is not None and (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
