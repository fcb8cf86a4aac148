"""How long to wait before a failed start is tried again. Pure.

The first retry comes soon, then 10, 20, 40 ... s, each with 25 % jitter and none after more than 300 s, and
all is forgotten after ten minutes of good running (the numbers kubelet and Nomad
settled on). Errors that repetition cannot heal are parked.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.timing import Timing

JITTER = 0.25


@dataclass(frozen=True, slots=True)
class Failures:
    """What went wrong lately: how often in a row, when it may be tried again (monotonic) and how long that was."""

    count: int = 0
    retry_at: float | None = None
    parked: bool = False
    delay: float | None = None


def delay(count: int, timing: Timing, spread: float) -> float:
    """Seconds before the next try after `count` failures in a row (>= 1).

    `spread` is a random number in -1..1, given by the caller so that this stays pure.
    """
    if count < 1:
        raise ValueError("no failure, no delay")
    base = timing.backoff_first if count == 1 else timing.backoff_next * 2 ** min(count - 2, 16)
    return min(base * (1 + JITTER * max(-1.0, min(1.0, spread))), timing.backoff_max)


def failed(before: Failures, *, now: float, ran_for: float, retryable: bool, timing: Timing, spread: float) -> Failures:
    """The record after one more failure of an engine that had been ready for `ran_for` seconds."""
    count = 1 if ran_for >= timing.backoff_reset else before.count + 1
    if not retryable:
        return Failures(count, None, parked=True)
    pause = delay(count, timing, spread)
    return Failures(count, now + pause, delay=pause)
