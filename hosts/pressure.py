"""How short of memory the system is at this moment: MemAvailable and the kernel's pressure stall information.

Read several times a second while the machine may be out of memory, so it is two small reads and no
more: procfs answers from the kernel's own numbers and never waits for a disk.
"""

from __future__ import annotations

from dataclasses import dataclass

from hosts.reading import number, read_bytes
from hosts.roots import Roots

_LIMIT = 16 * 1024


@dataclass(frozen=True, slots=True)
class MemoryPressure:
    """Bytes, percent, microseconds. What the kernel does not say is None (PSI may be off, or older than 4.20)."""

    available: int | None
    full_avg10: float | None
    """Percent of the last ten seconds in which every task that had work waited for memory."""
    stalled_us: int | None
    """The same since the boot, in microseconds of time."""


def read_pressure(roots: Roots) -> MemoryPressure:
    """One reading. Never fails."""
    full = _line(_stalls(roots, "memory"), b"full ")
    return MemoryPressure(
        available=_available(read_bytes(roots.proc / "meminfo", _LIMIT)),
        full_avg10=_percent(_value(full, "avg10")),
        stalled_us=number(_value(full, "total")),
    )


def waited(roots: Roots, of: str) -> tuple[float | None, float | None]:
    """`(some, full)`: percent of the last ten seconds in which some task, or all that had work, waited for `of`
    (`memory`, `cpu`, `io`)."""
    text = _stalls(roots, of)
    return _percent(_value(_line(text, b"some "), "avg10")), _percent(_value(_line(text, b"full "), "avg10"))


def _stalls(roots: Roots, of: str) -> bytes | None:
    return read_bytes(roots.proc / "pressure" / of, _LIMIT)


def _available(meminfo: bytes | None) -> int | None:
    kib = number(_line(meminfo, b"MemAvailable:"))
    return None if kib is None or kib < 0 else kib * 1024


def _line(text: bytes | None, start: bytes) -> str:
    """What follows `start` on the line that begins with it."""
    for line in (text or b"").splitlines():
        if line.startswith(start):
            return line[len(start) :].decode("ascii", "replace")
    return ""


def _value(line: str, key: str) -> str | None:
    for word in line.split():
        name, equals, value = word.partition("=")
        if equals and name == key:
            return value
    return None


def _percent(text: str | None) -> float | None:
    try:
        found = float(text or "")
    except ValueError:
        return None
    return found if 0 <= found <= 100 else None
