"""Copying into the store: in chunks off the event loop, resumable, digested on the way, atomic at the end."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.disk import disk_error
from orchestrator.errors import ModelFileError
from orchestrator.finishing import finished

T = TypeVar("T")
CHUNK = 8 << 20


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a file came from."""

    path: str
    wheel: str | None = None

    @property
    def said(self) -> str:
        return self.path if self.wheel is None else f"{self.path} of {self.wheel}"


@dataclass(frozen=True, slots=True)
class Sidecar:
    """What is recorded beside a file of the store."""

    sha256: str
    size: int
    origin: str


async def steadily(function: Callable[..., T], *args: object) -> T:
    """`asyncio.to_thread`, but a cancelled caller waits for the thread before it goes on.

    Else it would close files, or remove folders, under a thread that still works on them.
    """
    return await finished(asyncio.to_thread(function, *args))


def sidecar(file: Path) -> Sidecar | None:
    """The record beside a file, or None when there is none that can be read."""
    try:
        data = json.loads(_beside(file).read_text(encoding="utf-8"))
        return Sidecar(str(data["sha256"]), int(data["size"]), str(data["origin"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _beside(file: Path) -> Path:
    return file.with_name(file.name + ".json")


def digest_of(file: Path) -> str:
    """SHA-256 (hex) of a file. Blocking."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_text(file: Path, text: str) -> None:
    """Replace a file whole or not at all. Blocking."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.new")
    with temporary.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(file)
    _sync_folder(file.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Copier:
    """Copies one file after another; `report` gets the bytes done over all of them."""

    def __init__(self, report: Callable[[int], None], cancel: asyncio.Event | None = None) -> None:
        self._report = report
        self._cancel = cancel
        self._done = 0

    async def copy(self, source: str, size: int, to: Path, origin: Origin) -> str:
        """Copy, and return the SHA-256. A `.partial` of the same source is gone on with.

        Raises `ModelFileError` when the source changes or vanishes meanwhile, `DiskFull`, `DiskReadOnly`,
        CancelledError when cancelled.
        """
        known = await steadily(sidecar, to)
        if known is not None and known.size == size and await steadily(_is, to, known.sha256, source):
            self._done += size
            self._report(self._done)
            return known.sha256
        job = await steadily(_job, source, size, to)
        try:
            while True:
                self._go_on()
                count = await steadily(job.step)
                if not count:
                    break
                self._done += count
                self._report(self._done)
            return await steadily(job.finish, origin)
        finally:
            job.close()

    def _go_on(self) -> None:
        if self._cancel is not None and self._cancel.is_set():
            raise asyncio.CancelledError


def _is(to: Path, sha256: str, source: str) -> bool:
    """Whether the store's file is there, and the source still is what it was copied from."""
    return to.is_file() and digest_of(Path(source)) == sha256


def _job(source: str, size: int, to: Path) -> _Job:
    try:
        return _Job(source, size, to)
    except OSError as error:
        raise disk_error(error, to.parent, to.name) from error


class _Job:
    """One copy; every method blocks."""

    def __init__(self, source: str, size: int, to: Path) -> None:
        self._source, self._size, self._to = source, size, to
        self._partial = to.with_name(to.name + ".partial")
        self._note = to.with_name(to.name + ".partial.json")
        self._digest = hashlib.sha256()
        to.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._in = open(source, "rb", buffering=0)  # noqa: SIM115 - closed by close()
        except OSError as error:
            raise ModelFileError(f"{source} cannot be read: {error.strerror}", hint="check the path") from error
        self._identity = self._identify()
        resumed = self._resumable()
        try:
            self._out = open(self._partial, "r+b" if resumed else "wb", buffering=0)  # noqa: SIM115
        except OSError:
            self._in.close()
            raise
        self._left = resumed
        """Bytes of the partial file that are still to be read back into the digest."""
        if not resumed:
            self._write_note()

    def _write_note(self) -> None:
        try:
            write_text(self._note, json.dumps(self._identity))
        except OSError:
            self.close()
            raise

    def _identify(self) -> dict[str, Any]:
        info = os.fstat(self._in.fileno())
        return {"source": self._source, "size": info.st_size, "mtime_ns": info.st_mtime_ns, "inode": info.st_ino}

    def _resumable(self) -> int:
        try:
            same = json.loads(self._note.read_text(encoding="utf-8")) == self._identity
            there = self._partial.stat().st_size
        except (OSError, ValueError):
            return 0
        return there if same and there <= self._size else 0

    def step(self) -> int:
        """One chunk: read back what is there already, or copy on. 0 at the end."""
        try:
            if self._left:
                piece = self._out.read(min(CHUNK, self._left)) or b""
                self._left = self._left - len(piece) if piece else 0
                if not self._left:
                    self._in.seek(self._out.tell())
                self._digest.update(piece)
                return len(piece)
            piece = self._in.read(CHUNK) or b""
            self._digest.update(piece)
            view = memoryview(piece)
            while view:
                view = view[self._out.write(view) or 0 :]
            return len(piece)
        except OSError as error:
            raise disk_error(error, self._partial, self._to.name) from error

    def finish(self, origin: Origin) -> str:
        """Make it durable and give it its name."""
        if self._out.tell() != self._size or self._identify() != self._identity:
            self.close()
            self._partial.unlink(missing_ok=True)
            raise ModelFileError(f"{self._source} changed while it was copied", hint="add it when nothing writes to it")
        sha256 = self._digest.hexdigest()
        try:
            os.fsync(self._out.fileno())
            os.fchmod(self._out.fileno(), 0o644)  # engines run as another user
            self._partial.replace(self._to)
            write_text(_beside(self._to), json.dumps(asdict(Sidecar(sha256, self._size, origin.said)), indent=1) + "\n")
            self._note.unlink(missing_ok=True)
        except OSError as error:
            raise disk_error(error, self._to.parent, self._to.name) from error
        return sha256

    def close(self) -> None:
        self._in.close()
        self._out.close()
