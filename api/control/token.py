"""The token of the TCP listener: made at the first start, 256 random bits in a 0600 file.

The server keeps only its SHA-256 (`digest`). These functions read and write a
small local file and are meant for start-up, before the event loop serves.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import stat
from pathlib import Path

from orchestrator.errors import Conflict, Refused
from orchestrator.paths import Paths

RANDOM_BYTES = 32
_SHAPE = re.compile(r"[A-Za-z0-9._~+/=-]{32,512}")
"""What RFC 6750 lets a bearer token be made of; 32 characters at least."""
_LONGEST = 4096


def load_or_create(paths: Paths) -> str:
    """The token of this state folder; made when there is none.

    Creation is atomic: of two processes that start at once, both get the same token.
    Raises `Refused` for a token file that others may read, that belongs to someone
    else, or that holds no token; `Conflict` for a path that is not a regular file.
    """
    path = paths.token_file
    present = _read(path)
    if present is not None:
        return present
    _create(path)
    made = _read(path)
    if made is None:
        raise Conflict(f"{path} vanished while it was being made", hint="start again; is something else cleaning up?")
    return made


def digest(token: str) -> bytes:
    """SHA-256 of a token: what the server compares with."""
    return hashlib.sha256(token.encode()).digest()


def _read(path: Path) -> str | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Conflict(f"{path} is a symbolic link", hint="remove it; the daemon makes a token file") from error
        raise Refused(f"{path} cannot be read: {error.strerror}", hint="check its owner and mode") from error
    try:
        _check(path, os.fstat(fd))
        text = os.read(fd, _LONGEST).decode("ascii", "replace").strip()
    finally:
        os.close(fd)
    if not _SHAPE.fullmatch(text):
        raise Refused(
            f"{path} holds no token (32 to 512 characters of A-Z a-z 0-9 . _ ~ + / = -)",
            hint="remove it, so that a new token is made",
        )
    return text


def _check(path: Path, info: os.stat_result) -> None:
    """Refuse what is not a private file of this user's."""
    if not stat.S_ISREG(info.st_mode):
        raise Conflict(f"{path} is not a regular file", hint="remove it; the daemon makes a token file")
    if info.st_uid not in (0, os.geteuid()):
        raise Refused(
            f"{path} belongs to uid {info.st_uid}, who could read and change the token",
            hint=f"remove it, or `chown {os.geteuid()} {path}`",
        )
    mode = stat.S_IMODE(info.st_mode)
    if mode & 0o077:
        raise Refused(
            f"{path} can be read or written by others (mode {mode:04o})",
            hint=f"remove it, so that a new token is made; `chmod 600 {path}` keeps a token that others may know",
            evidence={"file": str(path), "mode": f"{mode:04o}"},
        )


def _create(path: Path) -> None:
    """Write a token beside `path` and link it there: the file is whole or it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(RANDOM_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):  # another process was first: its token counts
            os.link(draft, path)
    finally:
        draft.unlink()
