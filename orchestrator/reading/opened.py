"""Opening a model's file without being led astray: regular files below one root only, never waiting."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from orchestrator.errors import ModelFileError

AGAIN = "download the file again"


@dataclass(frozen=True, slots=True)
class Opened:
    """A file that is open for reading: its real path, and its size in bytes when it was opened."""

    file: BinaryIO
    path: str
    size: int


@contextlib.contextmanager
def opened(path: str, root: str | None = None) -> Iterator[Opened]:
    """Open a regular file. With a `root` (a real path) the file must lie below it after all links.

    Raises `ModelFileError`: not there, no regular file (a FIFO is not waited for), a link out of the
    folder, not readable, a disk that fails, or a file that changed its size while it was read.
    """
    try:
        real = os.path.realpath(path)
        if root is not None and not real.startswith(f"{root.rstrip('/')}/"):
            raise ModelFileError(
                f"{path} leads out of its folder, to {real}",
                hint="an engine is given the folder alone: put the file itself there (`cp -L`)",
            )
        descriptor = os.open(real, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise unreadable(path, error) from error
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            what = "is a folder" if stat.S_ISDIR(info.st_mode) else "is no regular file"
            raise ModelFileError(f"{path} {what}", hint=AGAIN)
        with os.fdopen(descriptor, "rb", buffering=0, closefd=False) as file:
            yield Opened(file, real, info.st_size)
        if os.fstat(descriptor).st_size != info.st_size:
            raise ModelFileError(f"{path} changed while it was read", hint="wait until whoever writes it is done")
    except OSError as error:
        raise unreadable(path, error) from error
    finally:
        os.close(descriptor)


def take(source: Opened, count: int) -> bytes:
    """Exactly so many bytes more. Raises `ModelFileError` when the file got shorter meanwhile."""
    pieces: list[bytes] = []
    missing = count
    while missing:
        piece = source.file.read(missing)
        if not piece:
            raise ModelFileError(f"{source.path} got shorter while it was read", hint=AGAIN)
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)


def unreadable(path: str, error: OSError | ValueError) -> ModelFileError:
    """The sentence for a file that cannot be opened or read."""
    if isinstance(error, FileNotFoundError | NotADirectoryError | ValueError):
        return ModelFileError(f"{path} does not exist", hint="check the path, or add the model again")
    if isinstance(error, PermissionError):
        return ModelFileError(f"{path} may not be read by this user", hint=f"chmod a+r {path}, and a+x its folders")
    return ModelFileError(f"{path} cannot be read: {error.strerror or error}", hint="check the disk")
