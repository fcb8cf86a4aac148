"""The lifecycle table, and the decision that walks it: always one step nearer, never in circles."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import lifecycle
from orchestrator.decision import Decision
from orchestrator.lifecycle import COMING, GONE, TRANSITIONS, EngineFacts, Situation, Step, allowed, decide
from orchestrator.lifecycle_drawing import redrawn
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


def test_the_drawing_is_of_the_table() -> None:
    page = (Path(lifecycle.__file__).parent / "design.md").read_text()
    assert page == redrawn(page), "`make drawing` draws it anew"


def test_every_state_can_be_left_but_the_last() -> None:
    assert {s for s, after in TRANSITIONS.items() if not after} == {State.STOPPED}
    assert set(TRANSITIONS) == set(State) - {State.WAITING_DEVICE, State.IDLE}, "which are no engine's states"
    for state in set(TRANSITIONS) - {State.STOPPED, State.STOPPING, State.FAILED, State.WEDGED}:
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
        # a wedged engine is in nobody's way, and is looked at again when there is nothing else to do
        (situation(EngineFacts(1, State.WEDGED, "a", 9.0)), Step.START, "not_running"),
        (situation(EngineFacts(1, State.WEDGED, "a", 0.0), retry_in=3.0), Step.CLEAN, "engine_wedged"),
        (situation(EngineFacts(1, State.WEDGED, "a", 9.0), retry_in=3.0), Step.WAIT, "backing_off"),
        (situation(EngineFacts(1, State.WEDGED, "a", 9.0), running=False), Step.WAIT, "engine_wedged"),
        (situation(EngineFacts(1, State.WEDGED, "a"), running=False), Step.CLEAN, "engine_wedged"),
        (situation(EngineFacts(1, State.WEDGED, "a"), running=False, stuck_in=1.0), Step.WAIT, "backing_off"),
        (
            situation(EngineFacts(1, State.WEDGED, "a", 9.0), EngineFacts(2, State.READY, "a"), serving=2),
            Step.SETTLED,
            "serving",
        ),
        (
            situation(EngineFacts(1, State.WEDGED, "a"), EngineFacts(2, State.LOADING, "a")),
            Step.CONTINUE,
            "start_unfinished",
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


@given(situations, st.floats(0.0, 5.0), st.booleans(), st.sampled_from([None, "held"]))
def test_no_step_is_ever_decided_that_must_not_be_taken(now: Situation, wait: float, parked: bool, held: str) -> None:
    """`forbidden` says what may never be done, `decide` what is done: written apart, they agree everywhere that
    `broken` lets exist."""
    for there in (now, replace(now, retry_in=wait, parked=parked, held=held), replace(now, stuck_in=wait)):
        if lifecycle.broken(there) is None:
            assert lifecycle.forbidden(there, decide(there)) is None, there


@pytest.mark.parametrize(
    ("there", "step", "about", "why"),
    [
        (situation(EngineFacts(1, State.FAILED, "a")), Step.START, None, "generation 1 is there (failed)"),
        (situation(EngineFacts(1, State.READY, "a")), Step.SWITCH, None, "nothing serves"),
        (
            situation(EngineFacts(1, State.READY, "b"), EngineFacts(2, State.STOPPING, "a"), serving=1),
            Step.SWITCH,
            None,
            "generation 2 is in the way (stopping)",
        ),
        (situation(EngineFacts(1, State.FAILED, "a")), Step.CONTINUE, 1, "generation 1 cannot go on"),
        (situation(EngineFacts(1, State.WEDGED, "a")), Step.STOP, 1, "generation 1 cannot be stopped"),
        (situation(EngineFacts(1, State.READY, "a")), Step.CLEAN, 1, "generation 1 has not failed"),
        (situation(running=False), Step.START, None, "nothing is to run"),
    ],
)
def test_what_may_never_be_done(there: Situation, step: Step, about: int | None, why: str) -> None:
    assert lifecycle.forbidden(there, Decision(step, "wrong", {"generation": about})) == why


def test_what_can_never_be() -> None:
    twice = situation(EngineFacts(1, State.READY, "a"), EngineFacts(1, State.LOADING, "a"))
    assert lifecycle.broken(twice) == "two engines of one generation: [1, 1]"
    dead = situation(EngineFacts(1, State.FAILED, "a"), serving=1)
    assert lifecycle.broken(dead) == "generation 1 serves, and is failed"
    assert lifecycle.broken(situation(EngineFacts(1, State.READY, "a"), serving=1)) is None


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
