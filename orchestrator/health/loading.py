"""How long an engine may take to start: a budget, lengthened for as long as it can be seen to get on. Pure.

A slow disk is no hang. What shows progress is counted by others than the engine: lines of its log, bytes that came
from disks, memory that grows. A load that shows none of that beyond its budget is given up after T_stall, and any
after `BOUND` budgets.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.decision import Decision

BOUND = 8.0
"""Budgets: the longest that progress can lengthen a load to. A budget is at least twice what is usual."""
GROWTH = 1 << 20
"""Bytes of memory, or from disks, that count as progress, since it was last seen."""


class Load(StrEnum):
    """What to do about a load."""

    WAIT = "wait"
    EXTENDED = "extended"
    """Beyond its budget, and getting on."""
    TIMED_OUT = "timed_out"


@dataclass(frozen=True, slots=True)
class Marks:
    """What could be seen of a load at one look; None is not known."""

    last_line: str | None = None
    resident: int | None = None
    read_bytes: int | None = None

    def beyond(self, before: Marks) -> str | None:
        """What has moved since `before`, in words; None when nothing has."""
        if self.last_line is not None and self.last_line != before.last_line:
            return "its log goes on"
        if _grew(before.read_bytes, self.read_bytes):
            return "it reads from a disk"
        if _grew(before.resident, self.resident):
            return "its memory grows"
        return None


def _grew(before: int | None, now: int | None) -> bool:
    return before is not None and now is not None and now - before >= GROWTH


def decide(*, elapsed: float, budget: float, quiet: float, stall: float, moved: str | None) -> Decision[Load]:
    """Seconds: since the start, the budget, since progress was last seen (or the start), T_stall. `moved` is what
    was seen then."""
    evidence: dict[str, object] = {
        "elapsed_s": round(elapsed, 1),
        "elapsed_s_limit": round(budget, 1),
        "no_progress_s": round(quiet, 1),
        "no_progress_s_limit": round(stall, 1),
        "at_most_s": round(BOUND * budget, 1),
        "last_progress": moved or "none was seen",
    }
    if elapsed < budget:
        return Decision(Load.WAIT, "within_budget", evidence)
    if elapsed >= BOUND * budget:
        return Decision(Load.TIMED_OUT, "too_long_in_all", evidence)
    if quiet < stall:
        return Decision(Load.EXTENDED, "progress", evidence)
    return Decision(Load.TIMED_OUT, "no_progress", evidence)
