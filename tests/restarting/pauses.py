"""Whether what was started again was started by the rule: no pause shorter or longer, and no start more."""

from __future__ import annotations

from orchestrator import backoff
from orchestrator.timing import Timing
from tests.stack.stack import Stack

LATE = 10.0
"""Seconds that the removal of the dead container and a busy machine may add to a pause."""


def assert_pauses(stack: Stack, timing: Timing, name: str = "m") -> None:
    """Every pause is the rule's, within its jitter and no further: what was decided, and what was done."""
    events = stack.events(name)
    failures = [event for event in events if event["code"] == "failed"]
    starts = [event["at"] for event in events if event["code"] == "starting"]
    again = [failure for failure in failures if failure["evidence"]["action"] != "park"]
    assert len(starts) == len(again) + 1, "a start for each pause, and the first"
    in_a_row = 0
    for n, failure in enumerate(again):
        same = failure["evidence"]["action"] == "retry_same"
        in_a_row = in_a_row + 1 if same else 1  # a rung begins anew
        shortest, longest = (backoff.delay(in_a_row, timing, spread) for spread in (-1.0, 1.0))
        in_a_row = in_a_row if same else 0
        pause, waited = failure["evidence"]["again_in_s"], starts[n + 1] - failure["at"]
        print(f"pause {n + 1}: {pause} s decided of {shortest:.4g} to {longest:.4g}, {waited:.3f} s waited")
        assert shortest - 0.001 <= pause <= longest + 0.001
        assert pause - 0.01 <= waited <= pause + LATE
