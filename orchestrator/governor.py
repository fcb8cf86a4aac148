"""When to take speculation back, and when to resume it: policy `qps`. Pure.

Drafting only pays while the device has time to spare, so it is dropped when the
request rate has been above one threshold for the dwell time and resumed when it
has been below another, lower one for as long. Between the two nothing changes
(hysteresis), and after a switch the dwell time starts anew.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from orchestrator.decision import Decision
from orchestrator.models import Speculation


class Governing(StrEnum):
    """What the governor wants."""

    KEEP = "keep"
    DROP = "drop"
    RESUME = "resume"


@dataclass(frozen=True, slots=True)
class GovernorState:
    """What the governor remembers of one deployment. Times are monotonic seconds."""

    above_since: float | None = None
    below_since: float | None = None
    refused_until: float | None = None
    """No new attempt before this time: the last one was refused as too costly."""


def observe(state: GovernorState, policy: Speculation, *, rate: float, now: float) -> GovernorState:
    """The state after seeing `rate` (requests a second) at `now`."""
    above = rate > policy.drop_above
    below = rate < policy.resume_below
    return replace(
        state,
        above_since=(state.above_since if state.above_since is not None else now) if above else None,
        below_since=(state.below_since if state.below_since is not None else now) if below else None,
    )


def decide(
    state: GovernorState, policy: Speculation, *, speculating: bool, rate: float, dwell: float, now: float
) -> Decision[Governing]:
    """Whether to drop or resume speculation now.

    `dwell` is the policy's dwell time in this daemon's time scale. The evidence holds the
    rate, the threshold and how long it has been crossed.
    """
    if policy.policy != "qps":
        return Decision(Governing.KEEP, "policy_off")
    if state.refused_until is not None and now < state.refused_until:
        return Decision(Governing.KEEP, "refused_before", {"seconds": round(state.refused_until - now, 3)})
    since, threshold, action, reason = (
        (state.above_since, policy.drop_above, Governing.DROP, "rate_above")
        if speculating
        else (state.below_since, policy.resume_below, Governing.RESUME, "rate_below")
    )
    evidence: dict[str, object] = {"rate": round(rate, 3), "threshold": threshold, "dwell_s": dwell}
    if since is None:
        return Decision(Governing.KEEP, "rate_within", evidence)
    evidence["for_s"] = round(now - since, 3)
    if now - since < dwell:
        return Decision(Governing.KEEP, "dwelling", evidence)
    return Decision(action, reason, evidence)
