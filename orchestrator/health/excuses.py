"""What an engine is seen to do besides serving, which buys it time. Pure.

Silence is no stall while a kernel is compiled at its first use (105 s on ROCm with SGLang), or while weights are read
again from a slow disk. Each excuse rests on what the kernel counts and has its bound.
"""

from __future__ import annotations

from dataclasses import dataclass

from hosts.work import Work
from orchestrator.health.live import NOTHING, Doing

FIRST_USE = 315.0
"""Seconds: three times the longest that compiling at first use was seen to take."""
DISK = 5.0
"""Of T_stall: how long an engine may do nothing but read."""
READS = 1 << 20
"""Bytes in one look that count as reading."""
BUSY = 0.1
"""Share of one core above which its processes do something: a compiler takes a whole one, or what a busy machine
leaves it. Below `IDLE` they do nothing, for an HTTP server that waits wakes up now and then. What lies between says
nothing: an engine that is starved of CPU is neither."""
IDLE = 0.02
WINDOW = 0.25
"""Of T_stall: over so long the CPU is looked at, for a busy machine takes it away for a look or two."""
LASTS = 0.5
"""Of T_stall: so long counts what it was seen to do."""


@dataclass(frozen=True, slots=True)
class Looked:
    """The container's processes at one look. `at` is monotonic seconds."""

    at: float
    work: Work


def used(before: Looked, now: Looked) -> float | None:
    """The share of one core that they used between two looks; None when that cannot be said."""
    passed = now.at - before.at
    return None if passed <= 0 else max(0.0, now.work.cpu_s - before.work.cpu_s) / passed


def busy(before: Looked, now: Looked) -> bool:
    """Whether they did something between two looks."""
    share = used(before, now)
    return share is None or share > BUSY


def idle(before: Looked, now: Looked) -> bool:
    """Whether they did nothing between two looks."""
    share = used(before, now)
    return share is not None and share < IDLE


def doing(
    before: Looked, now: Looked, *, limit: float, scale: float, first_use: float, served: bool, born: frozenset[int]
) -> Doing:
    """Why it may be silent. `born` are the processes that it had when it became ready, `served` whether it has given
    any client anything since. `limit` is T_stall; `first_use` (seconds, unscaled) is the runtime's own."""
    longest = max(FIRST_USE, first_use) * scale
    soon = now.at + LASTS * limit
    newcomers = {pid for pid, _ in now.work.processes} - born
    if newcomers and busy(before, now):
        return Doing(soon, "compiling", longest)
    if not served and busy(before, now):
        return Doing(soon, "first_use", longest)
    read, was = now.work.read_bytes, before.work.read_bytes
    if read is not None and was is not None and read - was >= READS:
        return Doing(soon, "reading_from_disk", DISK * limit)
    return NOTHING
