"""Reading small files of the kernel so that no file can hurt: absent, huge, binary, a FIFO, gone in between.

Every function answers `None` (or nothing) where a file does not say what it
should. They cannot protect from a driver whose read never returns: callers that
touch a device put the whole scan into `hosts.bounded`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

LIMIT = 256 * 1024
_SENTINELS = frozenset({0xFFFF, 0xFFFFFFFF, 2**64 - 1})


def read_bytes(path: Path, limit: int = LIMIT) -> bytes | None:
    """At most `limit` bytes of a regular file, or None. Never waits for a writer: a FIFO is refused."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (OSError, ValueError):
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        parts: list[bytes] = []
        left = limit
        while left > 0 and (part := os.read(descriptor, min(left, 65536))):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def read_text(path: Path, limit: int = LIMIT) -> str | None:
    """`read_bytes` as text without surrounding white space; an empty file is None."""
    raw = read_bytes(path, limit)
    if raw is None:
        return None
    return raw.decode("utf-8", "replace").strip().strip("\0") or None


def read_number(path: Path) -> int | None:
    """The first word of a file as a number (decimal or 0x...), or None."""
    return number(read_text(path, 4096))


def number(text: str | None) -> int | None:
    """The first word of `text` as a whole number, or None."""
    words = (text or "").split(maxsplit=1)
    if not words or len(words[0]) > 32:
        return None
    word = words[0]
    try:
        return int(word, 16) if word[:2].lower() == "0x" else int(word)
    except ValueError:
        return None


def known(value: object) -> int | None:
    """A whole number, or None for what drivers write instead of "unknown".

    These are the all-ones values of 16, 32 and 64 bits, a negative number, "N/A",
    and anything that is no number. amdsmi's Python layer turns only the first of
    them into "N/A" and lets 4294967295 through.
    """
    if isinstance(value, str):
        value = number(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0 or value in _SENTINELS:
        return None
    return value


def words(value: object) -> str | None:
    """A text that says something, or None for "", "N/A" and what is no text."""
    if not isinstance(value, str):
        return None
    text = value.strip()
    return None if text.upper() in {"", "N/A", "UNKNOWN", "NONE"} else text


def children(folder: Path) -> Iterator[Path]:
    """The entries of a folder in natural order (node2 before node10); nothing if it cannot be read."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in sorted(names, key=_natural):
        yield folder / name


def _natural(name: str) -> tuple[str, int, str]:
    head = name.rstrip("0123456789")
    tail = name[len(head) :]
    return head, int(tail) if 0 < len(tail) <= 18 else -1, name


def key_values(text: str | None, separator: str | None = None) -> dict[str, str]:
    """Lines of `key value` (or with a separator) as a mapping; the first of equal keys wins."""
    found: dict[str, str] = {}
    for line in (text or "").splitlines():
        key, *rest = line.split(separator, 1) or [""]
        if rest and key.strip() not in found:
            found[key.strip()] = rest[0].strip()
    return found
