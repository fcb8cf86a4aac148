"""The lifecycle table, and the decision that walks it: always one step nearer, never in circles."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import lifecycle
from orchestrator.lifecycle import COMING, GONE, TRANSITIONS, EngineFacts, Situation, Step, allowed, decide
from orchestrator.views import State


def situation(
    *engines: EngineFacts,
    running: bool = True,
    wanted: str | None = "a",
    serving: int | None = None,
    retry_in: float | None = None,
    parked: bool = False,
    stuck_in: float | None = None,
) -> Situation:
    return Situation(running, wanted, engines, serving, retry_in, parked, stuck_in)


def test_the_drawing_shows_the_table() -> None:
    drawing = (Path(lifecycle.__file__).parent / "design.md").read_text()
    drawn = re.findall(r"^ {4}(\w+) --> (\w+)$", drawing, re.MULTILINE)
    assert len(drawn) == len(set(drawn))
    assert set(drawn) == {(a.value, b.value) for a, after in TRANSITIONS.items() for b in after}


def test_every_state_can_be_left_but_the_last() -> None:
    assert {s for s, after in TRANSITIONS.items() if not after} == {State.STOPPED}
    assert set(TRANSITIONS) == set(State) - {State.WAITING_DEVICE, State.IDLE}, "which are no engine's states"
    for state in set(TRANSITIONS) - {State.STOPPED, State.STOPPING, State.FAILED}:
        assert allowed(state, State.STOPPING), state
        assert allowed(state, State.FAILED), state
    assert not allowed(State.LOADING, State.READY)  # never ready without having been proven
    assert not allowed(State.STOPPED, State.CREATING)


@pytest.mark.parametrize(
    ("given_", "step", "reason"),
    [
        (situation(), Step.START, "not_running"),
        (situation(wanted=None), Step.PLAN, "no_plan"),
        (situation(retry_in=3.0), Step.WAIT, "backing_off"),
        (situation(retry_in=0.0), Step.START, "not_running"),
        (situation(parked=True), Step.WAIT, "parked"),
        (situation(running=False), Step.SETTLED, "stopped"),
        (situation(EngineFacts(1, State.LOADING, "a")), Step.CONTINUE, "start_unfinished"),
        (situation(EngineFacts(1, State.LOADING, "b")), Step.STOP, "plan_changed"),
        (situation(EngineFacts(1, State.READY, "a")), Step.CONTINUE, "engine_ready"),
        (situation(EngineFacts(1, State.READY, "a"), serving=1), Step.SETTLED, "serving"),
        (situation(EngineFacts(1, State.READY, "b"), serving=1), Step.SWITCH, "plan_changed"),
        (situation(EngineFacts(1, State.READY, "b"), serving=1, wanted=None), Step.SETTLED, "serving"),
        (situation(EngineFacts(1, State.READY, "a"), running=False, serving=1), Step.STOP, "desired_stopped"),
        (situation(EngineFacts(1, State.FAILED, "a")), Step.CLEAN, "engine_failed"),
        (situation(EngineFacts(1, State.STOPPING, "a")), Step.STOP, "stop_unfinished"),
        (situation(EngineFacts(1, State.STOPPED, "a")), Step.START, "not_running"),
        (situation(EngineFacts(1, State.FAILED, "a"), stuck_in=2.0), Step.WAIT, "backing_off"),
        (
            situation(EngineFacts(1, State.DRAINING, "b"), EngineFacts(2, State.READY, "a"), serving=2),
            Step.STOP,
            "superseded",
        ),
        (
            situation(EngineFacts(1, State.READY, "b"), EngineFacts(2, State.LOADING, "a"), serving=1),
            Step.SWITCH,
            "plan_changed",
        ),
        (
            situation(EngineFacts(1, State.READY, "a"), EngineFacts(2, State.LOADING, "b"), serving=1),
            Step.STOP,
            "superseded",
        ),
    ],
)
def test_the_next_step(given_: Situation, step: Step, reason: str) -> None:
    decision = decide(given_)
    assert (decision.action, decision.reason) == (step, reason)


def test_a_crashed_engine_is_cleaned_before_anything_else() -> None:
    engines = (EngineFacts(1, State.READY, "a"), EngineFacts(2, State.FAILED, "a"))
    assert decide(situation(*engines, serving=1)).evidence["generation"] == 2


def test_what_serves_is_stopped_last() -> None:
    engines = (EngineFacts(2, State.READY, "a"), EngineFacts(1, State.DRAINING, "b"))
    assert decide(situation(*engines, running=False, serving=2)).evidence["generation"] == 1


facts = st.builds(EngineFacts, st.integers(1, 5), st.sampled_from(list(TRANSITIONS)), st.sampled_from(["a", "b"]))
situations = st.builds(
    Situation,
    running=st.booleans(),
    wanted=st.sampled_from([None, "a", "b"]),
    engines=st.lists(facts, max_size=4, unique_by=lambda e: e.generation).map(tuple),
    serving=st.none() | st.integers(1, 5),
    retry_in=st.none(),
    parked=st.just(False),
)


@given(situations)
def test_steps_lead_to_rest(now: Situation) -> None:
    """Carry each step out as the daemon does, with every start a success: it settles, and in the right place."""
    for _ in range(30):
        decision = decide(now)
        if decision.action in (Step.SETTLED, Step.WAIT):
            break
        now = carried_out(now, decision.action, decision.evidence.get("generation"))
    else:
        raise AssertionError(f"no rest from {now}")
    live = [e for e in now.engines if e.state not in GONE]
    if now.running:
        assert [e.generation for e in live] == [now.serving]
        assert now.wanted in (None, live[0].digest)
    else:
        assert live == []


def carried_out(now: Situation, step: Step, generation: object) -> Situation:
    engines = {e.generation: e for e in now.engines}
    newest = max(engines, default=0)
    match step:
        case Step.PLAN:
            return replace(now, wanted="a")
        case Step.START | Step.SWITCH:
            assert now.wanted is not None
            engines[newest + 1] = EngineFacts(newest + 1, State.READY, now.wanted)
            return replace(now, engines=tuple(engines.values()), serving=newest + 1)
        case Step.CONTINUE:
            assert isinstance(generation, int)
            assert engines[generation].state in COMING | {State.READY, State.DRAINING}
            engines[generation] = replace(engines[generation], state=State.READY)
            return replace(now, engines=tuple(engines.values()), serving=generation)
        case _:
            assert isinstance(generation, int)
            engines[generation] = replace(engines[generation], state=State.STOPPED)
            return replace(now, engines=tuple(engines.values()))
