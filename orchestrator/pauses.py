"""Whether time went by without this process: it was stopped, the host slept, or somebody set the clock. Pure.

Who watches others by the clock has to know that: after two minutes in which the daemon did not run, nothing that it
watches has been silent for two minutes, it merely was not looked at. Three clocks tell the cases apart: the monotonic
one goes on while a process is stopped and stands still while the host sleeps, the one since boot goes on in both, and
only the wall's can be set.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.decision import Decision

STEP = 2.0
"""Seconds by which the wall's clock must differ to count as set: far above what NTP slews between two looks (500 ppm),
and the skew that peers may have."""


class Pause(StrEnum):
    """What happened between two looks."""

    NONE = "none"
    STOPPED = "stopped"
    """The process did not run: SIGSTOP, a debugger, a frozen control group, a machine that swaps."""
    SLEPT = "slept"
    """The host was suspended."""
    CLOCK_SET = "clock_set"
    """Nothing but the wall's clock jumped. No reason to look at anything anew."""


@dataclass(frozen=True, slots=True)
class Instant:
    """One look at the three clocks, in seconds."""

    monotonic: float
    since_boot: float
    wall: float


def judge(before: Instant, now: Instant, *, usual: float, limit: float) -> Decision[Pause]:
    """What the time between two looks says. `usual` is the pause that there should have been between them; whatever
    goes beyond it by less than `limit` (both in seconds) is a busy machine."""
    ran = now.monotonic - before.monotonic
    slept = (now.since_boot - before.since_boot) - ran
    late = ran - usual
    step = (now.wall - before.wall) - (now.since_boot - before.since_boot)
    if slept > limit:
        return Decision(Pause.SLEPT, "host_slept", {"seconds": round(slept, 3), "limit_s": limit})
    if late > limit:
        return Decision(Pause.STOPPED, "daemon_stopped", {"seconds": round(late, 3), "limit_s": limit})
    if abs(step) > STEP:
        return Decision(Pause.CLOCK_SET, "clock_set", {"seconds": round(step, 3), "limit_s": STEP})
    return Decision(Pause.NONE, "awake")
