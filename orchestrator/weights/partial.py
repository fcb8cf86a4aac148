"""A file on its way: `x.partial` with a note beside it, digested as it grows. Every method blocks."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from orchestrator.disk import disk_error
from orchestrator.errors import DigestMismatch, SourceFailed
from orchestrator.store_files import write_text
from orchestrator.weights.resuming import Note, Target, digest_name, trusted
from orchestrator.weights.shelf import PARTIAL

CHUNK = 4 << 20
SURE = 128 << 20
"""Bytes after which what was written is made sure of."""


class Partial:
    """One file that is being fetched into `to`. Use: `open`, `reread` until it says 0, `write` ..., `finish`."""

    def __init__(self, to: Path, target: Target, boot: str) -> None:
        self.target = target
        self.to = to
        self.path = to.with_name(to.name + PARTIAL)
        self._beside = to.with_name(to.name + PARTIAL + ".json")
        self._boot = boot
        self._descriptor: int | None = None
        self._unread = 0
        self.length = 0
        """Bytes that are there and in the digest."""
        self.etag: str | None = None
        self._durable = 0

    def open(self) -> int:
        """Open or make the file; bytes of it that can be kept and have to be read back."""
        try:
            self.to.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            note = self._note()
            length = os.fstat(self._descriptor).st_size
            kept = trusted(note, length, self.target, self._boot)
            self.etag = note.etag if note is not None and kept else None
            os.ftruncate(self._descriptor, kept)
            self._begin(kept)
            if not kept:
                self._write_note()
        except OSError as error:
            self.close()
            raise disk_error(error, self.to.parent, self.to.name) from error
        return kept

    def _begin(self, kept: int) -> None:
        self._sha256 = hashlib.sha256()
        self._sha1 = hashlib.sha1(f"blob {self.target.size}\0".encode(), usedforsecurity=False)
        self._unread, self.length, self._durable = kept, 0, 0
        os.lseek(self._file, 0, os.SEEK_SET)

    @property
    def _file(self) -> int:
        assert self._descriptor is not None
        return self._descriptor

    def _note(self) -> Note | None:
        try:
            return Note(**json.loads(self._beside.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def _write_note(self) -> None:
        t = self.target
        note = Note(t.repository, t.commit, t.path, t.size, digest_name(t), self.etag, self._durable, self._boot)
        write_text(self._beside, json.dumps(asdict(note)) + "\n")

    def reread(self) -> int:
        """Take one piece of what is there into the digest; its bytes, 0 when all is."""
        if not self._unread:
            return 0
        piece = os.read(self._file, min(CHUNK, self._unread))
        self._unread = self._unread - len(piece) if piece else 0
        self._digest(piece)
        return len(piece)

    def _digest(self, piece: bytes | memoryview) -> None:
        self._sha256.update(piece)
        if self.target.sha256 is None:
            self._sha1.update(piece)
        self.length += len(piece)

    def begin_at(self, start: int, etag: str | None) -> None:
        """What comes next begins there: `length`, or 0 to begin anew. The source's ETag is noted."""
        try:
            if start != self.length:
                os.ftruncate(self._file, 0)
                self._begin(0)
            if etag != self.etag or not start:
                self.etag = etag
                self._write_note()
        except OSError as error:
            raise disk_error(error, self.to.parent, self.to.name) from error

    def write(self, piece: bytes) -> None:
        """Append. Raises `SourceFailed` for more than the file has, `DiskFull`, `DiskReadOnly`."""
        if self.length + len(piece) > self.target.size:
            raise SourceFailed(f"more came of {self.target.path} than its {self.target.size} bytes")
        try:
            view = memoryview(piece)
            while view:
                count = os.write(self._file, view)
                self._digest(view[:count])  # what is on disk is in the digest, also when the disk fills up here
                view = view[count:]
            if self.length - self._durable >= SURE:
                self._make_sure()
        except OSError as error:
            raise disk_error(error, self.to.parent, self.to.name) from error

    def _make_sure(self) -> None:
        os.fdatasync(self._file)
        self._durable = self.length
        self._write_note()

    def finish(self) -> str:
        """Check size and digest, make it durable, give it its name; its SHA-256.

        Raises `DigestMismatch`, with the bad data removed.
        """
        got = self._sha256.hexdigest()
        right = (
            got == self.target.sha256
            if self.target.sha256 is not None
            else self._sha1.hexdigest() == self.target.git_sha1
        )
        if self.length != self.target.size or not right:
            self.discard()
            raise DigestMismatch(
                f"{self.target.path} of {self.target.repository} is not what the hub promised: its digest differs",
                hint="it was removed; pull again; if it stays so, look at your proxy, or tell the repository's owner",
                evidence={"file": self.target.path, "expected": digest_name(self.target), "sha256": got},
            )
        try:
            os.fchmod(self._file, 0o644)  # engines run as another user
            os.fsync(self._file)
            self.path.replace(self.to)
            self._beside.unlink(missing_ok=True)
            folder = os.open(self.to.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise disk_error(error, self.to.parent, self.to.name) from error
        self.close()
        return got

    def discard(self) -> None:
        """Remove what came."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
        self.path.unlink(missing_ok=True)
        self._beside.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the file. What came stays for the next time; where nothing came, nothing stays."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        os.close(descriptor)
        if not self.length and not self._unread:
            with suppress(OSError):
                self.discard()
                self.to.parent.rmdir()
                self.to.parent.parent.rmdir()
