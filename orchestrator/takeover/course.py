"""The course of a takeover: the next single act, from what is seen now. Pure.

    stop the unit -> wait for its memory -> start ours -> wait -> disable the unit -> done
                                                 \\___________\\_> stop ours -> start the unit -> failed

It is asked again after each act, so whatever goes wrong is met by the same rule: there is one of the two at any
time, and the unit is the one that is fallen back to.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.decision import Decision

TAKEN_BACK = "takeover taken back"
"""Stands in the journal behind whoever had ours stopped again."""


class Act(StrEnum):
    """What to do next."""

    STOP_UNIT = "stop_unit"
    SETTLE = "settle"
    """Wait until the memory that the unit held has come back: what is planned before gets less."""
    START_OURS = "start_ours"
    WAIT = "wait"
    DISABLE_UNIT = "disable_unit"
    STOP_OURS = "stop_ours"
    START_UNIT = "start_unit"
    DONE = "done"
    FAILED = "failed"


class Ours(StrEnum):
    """How far our deployment is."""

    UNASKED = "unasked"
    COMING = "coming"
    READY = "ready"
    FAILED = "failed"
    """It failed, and is not tried again by itself."""
    STOPPED = "stopped"
    """It was started and is stopped again."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What there is. `waited` and `bound` in seconds, from the moment ours was asked for."""

    unit_active: bool
    unit_was_active: bool
    """Before anything was done: only what ran is started again."""
    unit_enabled: bool
    """Whether it would come up again with the machine."""
    ours: Ours
    waited: float
    bound: float
    settled: bool = True
    """What the unit held has come back, or has had its time."""
    trouble: str | None = None
    """An act failed, or a person interrupted: back to the unit. A reason code."""


def decide(seen: Seen) -> Decision[Act]:
    """The next act. Evidence has the numbers of a wait."""
    numbers: dict[str, object] = {"waited_s": round(seen.waited, 1), "bound_s": seen.bound}
    if seen.trouble is not None:
        return _back(seen, seen.trouble, numbers)
    match seen.ours:
        case Ours.UNASKED if seen.unit_active:
            return Decision(Act.STOP_UNIT, "unit_runs")
        case Ours.UNASKED if not seen.settled:
            return Decision(Act.SETTLE, "memory_comes_back")
        case Ours.UNASKED:
            return Decision(Act.START_OURS, "unit_stopped")
        case Ours.READY if seen.unit_enabled:
            return Decision(Act.DISABLE_UNIT, "ready", numbers)
        case Ours.READY:
            return Decision(Act.DONE, "ready", numbers)
        case Ours.COMING if seen.waited < seen.bound:
            return Decision(Act.WAIT, "coming", numbers)
        case Ours.COMING:
            return _back(seen, "not_ready_in_time", numbers)
        case _:
            return _back(seen, "ours_failed", numbers)


def _back(seen: Seen, reason: str, numbers: dict[str, object]) -> Decision[Act]:
    if seen.ours not in (Ours.UNASKED, Ours.STOPPED):
        return Decision(Act.STOP_OURS, reason, numbers)
    if seen.unit_was_active and not seen.unit_active:
        return Decision(Act.START_UNIT, reason, numbers)
    return Decision(Act.FAILED, reason, numbers)
