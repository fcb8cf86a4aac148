"""The course of a takeover: whatever is seen, one act nearer to an end, and never to none of the two."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.takeover.course import Act, Ours, Seen, decide

START = Seen(
    unit_active=True, unit_was_active=True, unit_enabled=True, ours=Ours.UNASKED, waited=0.0, bound=60.0, trouble=None
)


@pytest.mark.parametrize(
    ("change", "act", "reason"),
    [
        ({}, Act.STOP_UNIT, "unit_runs"),
        ({"unit_active": False, "settled": False}, Act.SETTLE, "memory_comes_back"),
        ({"unit_active": False}, Act.START_OURS, "unit_stopped"),
        ({"unit_active": False, "ours": Ours.COMING, "waited": 59.9}, Act.WAIT, "coming"),
        ({"unit_active": False, "ours": Ours.COMING, "waited": 60.0}, Act.STOP_OURS, "not_ready_in_time"),
        ({"unit_active": False, "ours": Ours.FAILED}, Act.STOP_OURS, "ours_failed"),
        ({"unit_active": False, "ours": Ours.STOPPED}, Act.START_UNIT, "ours_failed"),
        ({"ours": Ours.STOPPED}, Act.FAILED, "ours_failed"),
        ({"unit_active": False, "ours": Ours.READY}, Act.DISABLE_UNIT, "ready"),
        ({"unit_active": False, "ours": Ours.READY, "unit_enabled": False}, Act.DONE, "ready"),
        ({"unit_active": False, "trouble": "stop_unit_failed"}, Act.START_UNIT, "stop_unit_failed"),
        ({"trouble": "interrupted"}, Act.FAILED, "interrupted"),
        ({"unit_active": False, "ours": Ours.READY, "trouble": "interrupted"}, Act.STOP_OURS, "interrupted"),
    ],
)
def test_the_next_act(change: dict[str, object], act: Act, reason: str) -> None:
    decision = decide(replace(START, **change))  # type: ignore[arg-type]
    assert (decision.action, decision.reason) == (act, reason)


@given(
    st.booleans(),
    st.booleans(),
    st.lists(st.sampled_from([Ours.COMING, Ours.READY, Ours.FAILED]), max_size=5),
    st.lists(st.integers(0, 9), max_size=3),
)
def test_it_ends_and_what_ran_before_is_served_by_one_of_the_two(
    ran: bool, enabled: bool, course: list[Ours], troubles: list[int]
) -> None:
    now = replace(START, unit_active=ran, unit_was_active=ran, unit_enabled=enabled, settled=not ran)
    states = iter(course)
    for step in range(20):
        trouble = now.trouble or ("interrupted" if step in troubles else None)
        decision = decide(replace(now, trouble=trouble))
        now = replace(now, trouble=trouble)
        match decision.action:
            case Act.STOP_UNIT:
                now = replace(now, unit_active=False)
            case Act.START_UNIT:
                now = replace(now, unit_active=True)
            case Act.SETTLE:
                now = replace(now, settled=True)
            case Act.START_OURS:
                assert not now.unit_active, "never both at once"
                assert now.settled, "what the unit held has come back"
                now = replace(now, ours=Ours.COMING)
            case Act.WAIT:
                now = replace(now, ours=next(states, Ours.COMING), waited=now.waited + 20)
            case Act.DISABLE_UNIT:
                assert now.ours is Ours.READY
                now = replace(now, unit_enabled=False)
            case Act.STOP_OURS:
                now = replace(now, ours=Ours.STOPPED, trouble=trouble or decision.reason)
            case Act.DONE:
                assert (now.ours, now.unit_active) == (Ours.READY, False)
                return
            case Act.FAILED:
                assert now.unit_active == ran
                assert now.ours in (Ours.UNASKED, Ours.STOPPED)
                return
    raise AssertionError(f"no end: {now}")
