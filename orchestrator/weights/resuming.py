"""How a file that was cut off is gone on with. Pure: what is on disk and what was answered, to what to do.

A server may ignore a Range (200), have another file by now (another ETag), have none of the bytes
(416), or answer something else altogether; in no case do bytes of two files get into one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")


@dataclass(frozen=True, slots=True)
class Target:
    """The file that is wanted. One of the digests is always known: SHA-256 of large files, git's of small ones."""

    repository: str
    commit: str
    path: str
    size: int
    sha256: str | None
    git_sha1: str | None


@dataclass(frozen=True, slots=True)
class Note:
    """What is written beside a partial file. `durable` bytes were made sure of (fsync) under the boot `boot`."""

    repository: str
    commit: str
    path: str
    size: int
    digest: str
    etag: str | None
    durable: int
    boot: str


def digest_name(target: Target) -> str:
    """The expected digest, with its kind."""
    return f"sha256:{target.sha256}" if target.sha256 is not None else f"git:{target.git_sha1}"


def trusted(note: Note | None, length: int, target: Target, boot: str) -> int:
    """Bytes of a partial file that may be kept.

    After a crash of the process all that was written is there; after one of the machine only what was
    made sure of. A note of another file, or none, is worth nothing.
    """
    if note is None or length <= 0:
        return 0
    wanted = (target.repository, target.commit, target.path, target.size, digest_name(target))
    if (note.repository, note.commit, note.path, note.size, note.digest) != wanted:
        return 0
    good = length if note.boot == boot else min(length, max(note.durable, 0))
    return good if good <= target.size else 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do with an answer: `go` (append from `start`), `anew` (ask again, from zero), `wrong`."""

    action: str
    start: int = 0
    text: str = ""
    etag: str | None = None


def judge(status: int, headers: Mapping[str, str], offset: int, known_etag: str | None, target: Target) -> Verdict:
    """What a 200, 206 or 416 means when bytes from `offset` on were asked for."""
    etag = headers.get("etag") or None
    if (headers.get("content-encoding") or "identity") != "identity":
        return Verdict("wrong", text=f"it came compressed ({headers.get('content-encoding')})")
    if status == 416:
        return (
            Verdict("anew", text="the hub has no byte there") if offset else Verdict("wrong", text="416 for all of it")
        )
    if status == 200:
        length = _length(headers)
        if length is not None and length != target.size:
            return Verdict("wrong", text=f"it has {length} bytes there and should have {target.size}")
        return Verdict("go", 0, "the hub does not go on in the middle" if offset else "", etag)
    if status != 206:
        return Verdict("wrong", text=f"the hub answered {status}")
    found = _RANGE.fullmatch((headers.get("content-range") or "").strip())
    if found is None or int(found[1]) != offset or not offset <= int(found[2]) < int(found[3]):
        return _unless_at_zero(offset, f"bytes from {offset} on were asked for, not {headers.get('content-range')}")
    if int(found[3]) != target.size:
        return Verdict("wrong", text=f"it has {found[3]} bytes there and should have {target.size}")
    if offset and known_etag is not None and etag is not None and etag != known_etag:
        return Verdict("anew", text="the file has changed there")
    return Verdict("go", offset, "", etag)


def _unless_at_zero(offset: int, text: str) -> Verdict:
    return Verdict("anew" if offset else "wrong", text=text)


def _length(headers: Mapping[str, str]) -> int | None:
    text = (headers.get("content-length") or "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None
