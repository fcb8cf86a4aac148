"""What follows from one more failure: the same again after a pause, the next rung, or nothing more. Pure.

The first retry comes soon, then 10, 20, 40 ... 300 s with jitter (`orchestrator.backoff`). After three failures within
ten minutes of serving the rung is left: loads and pauses do not count, or an engine that loads for nine minutes would
never climb down. What repetition cannot heal leaves the rung at once. Ten minutes of good running forgive.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from orchestrator import backoff
from orchestrator.decision import Decision
from orchestrator.faults import policy_of
from orchestrator.restarting.standing import Failure, GivenUp, Key, Moment, Standing
from orchestrator.timing import Timing

KEPT = 16
"""Failures and given-up rungs that are remembered of one deployment."""


class Next(StrEnum):
    """What is done about a failure."""

    RETRY_SAME = "retry_same"
    NEXT_RUNG = "next_rung"
    PARK = "park"
    """Only a person, or a day, makes another try sensible."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A failure: on which rung, how it ended, how long the engine had served (0.0: it never was ready), whether the
    same may work the next time."""

    key: Key
    text: str
    code: str
    ran_for: float
    retryable: bool
    served: bool = False
    detail: str = ""
    hint: str | None = None


def after(
    standing: Standing, seen: Seen, *, timing: Timing, spread: float, now: Moment
) -> tuple[Decision[Next], Standing]:
    """The decision, and what is remembered from now on. Evidence: `failures` on this rung of `limit`, and the pause in
    `seconds` before the next try."""
    policy = policy_of(seen.code)
    if seen.ran_for >= timing.backoff_reset:
        standing = forgiven(standing, seen.key)
    count = standing.count + 1
    mine = _within(
        [f for f in standing.failures if f.key == seen.key] + [Failure(seen.key, seen.code, seen.ran_for)],
        timing.rung_window,
    )
    on_trial = any(g.trial and g.key == seen.key for g in standing.given_up)
    hopeless = not seen.retryable and not seen.served
    limit = 1 if on_trial or hopeless else policy.limit
    numbers: dict[str, object] = {"failures": len(mine), "limit": limit, "in_a_row": count}
    if len(mine) < limit:
        others = tuple(f for f in standing.failures if f.key != seen.key)
        pause = backoff.delay(count, timing, spread)
        kept = replace(standing, count=count, failures=(*others, *mine)[-KEPT:])
        return Decision(Next.RETRY_SAME, "may_work_again", {**numbers, "seconds": round(pause, 3)}), kept
    if hopeless and not policy.helps:
        return Decision(Next.PARK, "nothing_helps", numbers), replace(standing, count=count)
    gone = GivenUp(seen.key, seen.text, seen.code, len(mine), now, seen.detail, seen.hint)
    rest = tuple(g for g in standing.given_up if g.key != seen.key)
    left = replace(
        standing,
        count=0,
        failures=tuple(f for f in standing.failures if f.key != seen.key),
        given_up=(*rest, gone)[-KEPT:],
    )
    reason = "on_trial" if on_trial else "cannot_heal" if hopeless else "keeps_failing"
    pause = backoff.delay(1, timing, spread)
    return Decision(Next.NEXT_RUNG, reason, {**numbers, "seconds": round(pause, 3)}), left


def spare(standing: Standing, key: Key, code: str, timing: Timing) -> int:
    """With how many more failures of this code the rung is left, one at least."""
    if any(g.trial and g.key == key for g in standing.given_up):
        return 1
    seen = _within([f for f in standing.failures if f.key == key], timing.rung_window)
    return max(1, policy_of(code).limit - len(seen))


def forgiven(standing: Standing, key: Key) -> Standing:
    """After good running: its failures are forgotten, and a trial was passed."""
    return replace(
        standing,
        count=0,
        failures=(),
        given_up=tuple(g for g in standing.given_up if not (g.trial and g.key == key)),
    )


def may_go_up(standing: Standing, now: Moment, timing: Timing) -> bool:
    """Whether what was given up may be tried again by itself: a day after the last rung was left."""
    return bool(standing.left) and all(now.since(g.at) >= timing.rung_up for g in standing.left)


def gone_up(standing: Standing, *, on_trial: bool) -> Standing:
    """From the top again: for good (a person says so), or on trial."""
    given_up = tuple(replace(g, trial=True) for g in standing.given_up) if on_trial else ()
    return Standing(given_up=given_up, here=standing.here)


def after_boot(standing: Standing, boot: str) -> Standing:
    """What still counts when the host was started anew: not what another driver or other memory may have mended."""
    kept = tuple(g for g in standing.given_up if g.at.boot == boot or policy_of(g.code).persists)
    return standing if len(kept) == len(standing.given_up) else replace(standing, given_up=kept)


def _within(failures: list[Failure], window: float) -> tuple[Failure, ...]:
    """The last of these that lie within `window` seconds of serving."""
    kept: list[Failure] = []
    served = 0.0
    for failure in reversed(failures):
        if served > window:
            break
        kept.append(failure)
        served += failure.ran_for
    return tuple(reversed(kept))
