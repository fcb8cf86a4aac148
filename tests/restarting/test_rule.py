"""The restart rule: the pauses, the three failures on a rung, what goes down at once, and what forgives."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.faults import FAULTS, policy_of
from orchestrator.restarting import rule
from orchestrator.restarting.rule import Next, Seen
from orchestrator.restarting.standing import Failure, Key, Moment, Standing
from orchestrator.timing import Timing

TIMING = Timing()
NOW = Moment("b", 1000.0, 5000.0)
TOP = Key("llama.cpp", "v", "dflash", "d")


def seen(code: str = "engine_killed", ran_for: float = 0.0, *, retryable: bool = True, key: Key = TOP) -> Seen:
    return Seen(key, "the plan as it is", code, ran_for, retryable, served=ran_for > 0)


def walk(
    *failures: Seen, standing: Standing | None = None, spread: float = 0.0
) -> tuple[list[str], Standing, list[object]]:
    """The decisions of these failures, one after another, and the pauses."""
    standing, actions, pauses = standing or Standing(), [], []
    for failure in failures:
        decision, standing = rule.after(standing, failure, timing=TIMING, spread=spread, now=NOW)
        actions.append(decision.action.value)
        pauses.append(decision.evidence.get("seconds"))
    return actions, standing, pauses


def test_three_failures_within_ten_minutes_of_serving_leave_the_rung() -> None:
    actions, standing, pauses = walk(seen(), seen(ran_for=100.0), seen(ran_for=200.0))
    assert actions == ["retry_same", "retry_same", "next_rung"]
    assert pauses == [1.0, 10.0, 1.0]
    (left,) = standing.left
    assert (left.key, left.code, left.failures, left.at) == (TOP, "engine_killed", 3, NOW)
    assert (standing.failures, standing.count) == ((), 0)


def test_failures_that_are_further_apart_do_not_and_the_pauses_grow_to_five_minutes() -> None:
    """Each served for six minutes: three are never within ten, and none served for ten, which would forgive."""
    actions, _, pauses = walk(*[seen(ran_for=360.0)] * 9)
    assert actions == ["retry_same"] * 9
    assert pauses == [1, 10, 20, 40, 80, 160, 300, 300, 300]


def test_ten_minutes_of_good_running_forgive() -> None:
    actions, standing, pauses = walk(seen(), seen(), seen(ran_for=600.0), seen(), seen())
    assert actions == ["retry_same"] * 4 + ["next_rung"]
    assert pauses[2] == 1.0
    assert len(standing.left) == 1


def test_what_repetition_cannot_heal_leaves_the_rung_at_once() -> None:
    actions, standing, _ = walk(seen("out_of_memory", retryable=False))
    assert actions == ["next_rung"]
    assert standing.left[0].failures == 1


def test_the_same_after_it_has_served_is_tried_again() -> None:
    actions, _, _ = walk(*[seen("out_of_memory", 60.0, retryable=False)] * 3)
    assert actions == ["retry_same", "retry_same", "next_rung"]


def test_what_no_rung_mends_is_parked() -> None:
    actions, standing, _ = walk(seen("model_truncated", retryable=False))
    assert actions == ["park"]
    assert standing.left == ()


def test_wrong_output_leaves_the_rung_after_two_failures_with_a_restart_between() -> None:
    assert walk(seen("canary_failed"), seen("canary_failed"))[0] == ["retry_same", "next_rung"]


def test_rungs_are_counted_apart() -> None:
    lower = Key("llama.cpp", "v", "none", None)
    actions, _, _ = walk(seen(), seen(), seen(key=lower), seen(key=lower))
    assert actions == ["retry_same"] * 4


def test_a_rung_on_trial_is_left_at_the_first_failure() -> None:
    _, standing, _ = walk(*[seen()] * 3)
    up = rule.gone_up(standing, on_trial=True)
    assert up.left == ()
    actions, again, _ = walk(seen(), standing=up)
    assert actions == ["next_rung"]
    assert len(again.left) == 1
    passed = rule.forgiven(up, TOP)
    assert passed.given_up == ()


def test_a_day_brings_it_up_again_and_a_clock_that_is_set_does_not() -> None:
    _, standing, _ = walk(*[seen()] * 3)
    day = TIMING.rung_up
    assert not rule.may_go_up(standing, Moment("b", NOW.now + day - 1, NOW.wall + 10 * day), TIMING)
    assert rule.may_go_up(standing, Moment("b", NOW.now + day, NOW.wall - 3600), TIMING)
    assert rule.may_go_up(standing, Moment("another boot", 5.0, NOW.wall + day), TIMING)
    assert not rule.may_go_up(Standing(), Moment("b", NOW.now + day, 0.0), TIMING)


def test_another_boot_forgets_what_it_may_have_mended() -> None:
    for code, kept in (("driver_too_old", 0), ("out_of_memory", 0), ("bad_flag", 1)):
        _, standing, _ = walk(seen(code, retryable=False))
        assert len(rule.after_boot(standing, "b").left) == 1
        assert len(rule.after_boot(standing, "other").left) == kept, code


CODES = st.sampled_from(sorted(code for code in FAULTS if policy_of(code).blames))
KEYS = st.sampled_from([TOP, Key("llama.cpp", "v", "dflash", "d", "fewer_slots"), Key("llama.cpp", "v", "none", None)])
FAILURES = st.builds(
    Seen, KEYS, st.just("a rung"), CODES, st.floats(0, 2000), st.booleans(), st.booleans(), st.just(""), st.none()
)


@given(st.lists(FAILURES, max_size=30), st.floats(-1, 1))
def test_whatever_happens_it_stays_small_never_retries_in_a_hot_loop_and_can_be_read_back(
    failures: list[Seen], spread: float
) -> None:
    standing = Standing()
    in_a_row: dict[Key, int] = {}
    for failure in failures:
        decision, standing = rule.after(standing, failure, timing=TIMING, spread=spread, now=NOW)
        if decision.action is not Next.PARK:
            seconds = float(str(decision.evidence["seconds"]))
            assert 0.75 * TIMING.backoff_first - 0.001 <= seconds <= TIMING.backoff_max
        if failure.ran_for == 0 and decision.action is Next.RETRY_SAME:
            in_a_row[failure.key] = in_a_row.get(failure.key, 0) + 1
            assert in_a_row[failure.key] < 3, "the third failure without any serving is the last on its rung"
        else:
            in_a_row.clear()
        assert len(standing.failures) <= rule.KEPT
        assert len({g.key for g in standing.given_up}) == len(standing.given_up) <= rule.KEPT
    assert Standing.from_dict(json.loads(json.dumps(standing.to_dict()))) == standing


@pytest.mark.parametrize(
    "text", ["{}", "[]", '{"count": 1}', '{"count": 0, "failures": [{}], "given_up": [], "here": null}']
)
def test_what_is_no_standing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no standing"):
        Standing.from_dict(json.loads(text))


def test_failures_that_are_remembered_are_those_that_count() -> None:
    _, standing, _ = walk(seen(ran_for=500.0), seen(ran_for=400.0))
    assert standing.failures == (Failure(TOP, "engine_killed", 500.0), Failure(TOP, "engine_killed", 400.0))
    _, standing, _ = walk(seen(ran_for=300.0), standing=standing)
    assert [f.ran_for for f in standing.failures] == [400.0, 300.0], "700 s of serving lie after the first"
