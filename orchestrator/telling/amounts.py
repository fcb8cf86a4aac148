"""Numbers for people: durations, sizes, moments. Pure."""

from __future__ import annotations

GIB = 2**30
MIB = 2**20
MINUTE, HOUR, DAY = 60, 3600, 86400


def duration(seconds: float) -> str:
    """0.4 s, 12 s, 2 min 5 s, 3 h 20 min, 5 d 2 h."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s".replace(".0 s", " s")
    whole = round(seconds)
    if whole < 2 * MINUTE:
        return f"{whole} s"
    if whole < HOUR:
        return f"{whole // MINUTE} min {whole % MINUTE} s"
    if whole < DAY:
        return f"{whole // HOUR} h {whole % HOUR // MINUTE} min"
    return f"{whole // DAY} d {whole % DAY // HOUR} h"


def ago(seconds: float) -> str:
    """When something was: just now, 12 s ago, 3 min ago, 2 h ago, 5 d ago. No more than is needed to find it."""
    whole = max(0, round(seconds))
    if whole < 1:
        return "just now"
    for unit, name in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min")):
        if whole >= 2 * unit:
            return f"{whole // unit} {name} ago"
    return f"{whole} s ago"


def within(seconds: float) -> str:
    """When something will be."""
    return f"in {duration(seconds)}" if seconds >= 1 else "at once"


def size(count: float) -> str:
    """Bytes of memory."""
    if abs(count) >= GIB:
        return f"{count / GIB:.1f} GiB"
    return f"{count / MIB:.0f} MiB" if abs(count) >= MIB else f"{count:.0f} bytes"


def number(value: float) -> str:
    """A number without digits that say nothing."""
    if isinstance(value, int) or value == int(value):
        return f"{int(value)}"
    return f"{value:.3g}"


def count(number_of: int, what: str, several: str | None = None) -> str:
    """1 failure, 2 failures."""
    return f"{number_of} {what if number_of == 1 else several or what + 's'}"
