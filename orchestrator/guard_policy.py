"""When an engine goes so that the host does not freeze, and which. Pure.

An engine on unified memory, or on a CPU, that takes the last of the system's memory does not get an
error: everything stops, the daemon included. So memory is *short* when less than the reserve is
available, or when all tasks together wait for memory for much of the time. Available memory counts
the page cache as free, which is right: a full cache is no shortage. A shortage must be seen twice in
a row, so that a dip between two looks costs nobody an engine.

One engine goes at a time, and the next only when memory is still short after it has gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from orchestrator.decision import Decision

LOOKS = 2
"""Looks in a row at which memory must be short."""


class Guarding(StrEnum):
    """What the guard does now."""

    REST = "rest"
    WATCH = "watch"
    """Short for the first time: look again."""
    WAIT = "wait"
    """One engine is on its way out."""
    STOP = "stop"
    HELPLESS = "helpless"
    """Short, and no engine is to blame."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An engine with memory of the system's. `since` is Unix time of its start; `leaving`: it is being stopped;
    `told`: it was killed before, and has not gone."""

    engine: str
    deployment: str
    generation: int
    preemptible: bool
    priority: int
    since: float
    leaving: bool = False
    told: bool = False


@dataclass(frozen=True, slots=True)
class Shortage:
    """The numbers of one look. Bytes and percent; None is unknown.

    `stalled` is the part of the time since the last look in which all tasks waited for memory, which
    tells pressure that goes on from the tail that `full_avg10` has after it ended.
    """

    available: int | None
    reserve: int
    full_avg10: float | None
    stalled: float | None
    pressure: float
    """The limit of `full_avg10`."""


@dataclass(frozen=True, slots=True)
class Watch:
    """What the guard remembers from look to look. Seconds."""

    looks: int = 0
    """At how many in a row before this one memory was short."""
    going_for: float | None = None
    """How long ago an engine was stopped that has not gone yet."""
    patience: float = 2.0
    """How long that may take before the next one has to go."""


def shortage(now: Shortage) -> str | None:
    """The reason code of a shortage; None when there is none, or nothing is known."""
    if now.available is not None and now.available < now.reserve:
        return "memory_low"
    pressed = now.full_avg10 is not None and now.full_avg10 > now.pressure
    if pressed and (now.stalled is None or now.stalled > now.pressure):
        return "memory_pressure"
    return None


def victim(engines: Sequence[Candidate]) -> Candidate | None:
    """Who goes: one that is leaving anyhow, else the newest of those that may be pre-empted, else the newest.

    One that was killed already and hangs is the last to be tried again.
    """

    def order(e: Candidate) -> tuple[bool, bool, bool, float, int, str]:
        return e.told, not e.leaving, not e.preemptible, -e.since, e.priority, e.engine

    return min(engines, key=order, default=None)


def decide(now: Shortage, watch: Watch, engines: Sequence[Candidate]) -> Decision[Guarding]:
    """What to do at this look; the evidence of a stop names the engine, and its rivals."""
    reason = shortage(now)
    numbers: dict[str, object] = {
        "available_bytes": now.available,
        "reserve_bytes": now.reserve,
        "full_avg10": now.full_avg10,
        "stalled_percent": None if now.stalled is None else round(now.stalled, 1),
        "pressure_limit": now.pressure,
    }
    if reason is None:
        return Decision(Guarding.REST, "enough", numbers)
    if watch.going_for is not None and watch.going_for < watch.patience:
        return Decision(Guarding.WAIT, "one_is_going", numbers)
    if watch.looks + 1 < LOOKS:
        return Decision(Guarding.WATCH, reason, numbers)
    chosen = victim(engines)
    if chosen is None:
        return Decision(Guarding.HELPLESS, reason, numbers)
    return Decision(
        Guarding.STOP,
        reason,
        {
            **numbers,
            "engine": chosen.engine,
            "chosen": "leaving" if chosen.leaving else "preemptible" if chosen.preemptible else "newest",
            "others": [e.engine for e in engines if e is not chosen],
        },
    )
