"""Using files in folders that somebody with fewer rights may write to.

As a system service the daemon is root and the gateway a user of its own, who owns the folder
with the gateway's socket and pid, and `engines/`. If the gateway were taken over, it could put
anything there: links to files of root's, pipes that block whoever opens them. So root follows
no link there, waits for nothing, and looks at what it has got hold of, not at a name.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import Conflict

LARGEST = 4096
"""Bytes: pids and keys are shorter."""


@dataclass(frozen=True, slots=True)
class Found:
    """A small file's contents, and whose file it is."""

    data: bytes
    uid: int


def read_small(path: Path) -> Found | None:
    """A regular file's first `LARGEST` bytes; None for anything else, a link among it. Never blocks."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        info = os.fstat(handle)
        return Found(os.read(handle, LARGEST), info.st_uid) if stat.S_ISREG(info.st_mode) else None
    except OSError:
        return None
    finally:
        os.close(handle)


def make_open_folder(path: Path, mode: int) -> None:
    """Make a folder, or take one of our own that is there, and give it this mode.

    Raises `Conflict` when something else has the name: its mode is not touched.
    """
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise Conflict(f"{path} is no folder: {error.strerror}", hint=f"look at it, then remove {path}") from error
    try:
        if os.fstat(handle).st_uid != os.geteuid():
            raise Conflict(f"{path} is somebody else's folder", hint=f"look at it, then remove {path}")
        os.fchmod(handle, mode)
    finally:
        os.close(handle)


@contextlib.contextmanager
def pinned_socket(path: Path) -> Iterator[str]:
    """A name for the socket that is at `path` now, which cannot be turned into a link to another one.

    Raises `FileNotFoundError`, or another `OSError` when it is no socket.
    """
    handle = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISSOCK(os.fstat(handle).st_mode):
            raise ConnectionRefusedError(f"{path} is no socket")
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)
