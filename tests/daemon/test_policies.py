"""Back-off, adoption, governor, switching, rates: each rule, and its false-positive twin."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import adoption, backoff, governor, switching
from orchestrator.adoption import Adoption, Found
from orchestrator.governor import Governing, GovernorState
from orchestrator.models import Speculation
from orchestrator.rates import Rate
from orchestrator.switching import Switch, SwitchFacts
from orchestrator.timing import Timing

TIMING = Timing()
QPS = Speculation(policy="qps", drop_above=8.0, resume_below=4.0, dwell_s=10.0)


# back-off


def test_delays_double_up_to_a_bound() -> None:
    assert [backoff.delay(n, TIMING, 0.0) for n in range(1, 9)] == [1, 10, 20, 40, 80, 160, 300, 300]
    assert backoff.delay(3, TIMING, 1.0) == 25.0
    assert backoff.delay(3, TIMING, -1.0) == 15.0


@given(st.integers(1, 10_000), st.floats(-5, 5))
def test_no_delay_leaves_its_bounds(count: int, spread: float) -> None:
    assert 0.75 * TIMING.backoff_first <= backoff.delay(count, TIMING, spread) <= TIMING.backoff_max


def test_good_running_forgets_earlier_failures() -> None:
    third = backoff.Failures(count=3, retry_at=100.0)
    soon = backoff.failed(third, now=200.0, ran_for=599.0, retryable=True, timing=TIMING, spread=0.0)
    late = backoff.failed(third, now=200.0, ran_for=600.0, retryable=True, timing=TIMING, spread=0.0)
    assert (soon.count, soon.retry_at) == (4, 240.0)
    assert (late.count, late.retry_at) == (1, 201.0)


def test_what_repetition_cannot_heal_is_parked() -> None:
    parked = backoff.failed(backoff.Failures(), now=0.0, ran_for=0.0, retryable=False, timing=TIMING, spread=0.0)
    assert (parked.count, parked.retry_at, parked.parked) == (1, None, True)


# adoption

GOOD = {
    "state": "running",
    "alive": True,
    "conmon_alive": True,
    "plan_readable": True,
    "key_present": True,
    "defined": True,
    "stopped": False,
    "proven": True,
    "superseded": False,
}


@pytest.mark.parametrize(
    ("change", "action", "reason"),
    [
        ({}, Adoption.ADOPT, "running_and_proven"),
        ({"proven": False}, Adoption.PROVE, "running_unproven"),
        ({"state": "created", "alive": False}, Adoption.REMOVE, "not_running"),
        ({"state": "exited", "alive": False}, Adoption.REMOVE, "not_running"),
        ({"state": "stopping"}, Adoption.REMOVE, "not_running"),
        ({"alive": False}, Adoption.REMOVE, "not_running"),
        ({"conmon_alive": False}, Adoption.REMOVE, "conmon_dead"),
        ({"plan_readable": False}, Adoption.REMOVE, "plan_unreadable"),
        ({"key_present": False}, Adoption.REMOVE, "key_lost"),
        ({"defined": False}, Adoption.REMOVE, "not_defined"),
        ({"stopped": True}, Adoption.REMOVE, "desired_stopped"),
        ({"superseded": True, "proven": False}, Adoption.REMOVE, "superseded"),
        ({"superseded": True}, Adoption.ADOPT, "running_and_proven"),
    ],
)
def test_adoption(change: dict[str, object], action: Adoption, reason: str) -> None:
    decision = adoption.decide(Found(**{**GOOD, **change}))  # type: ignore[arg-type]
    assert (decision.action, decision.reason) == (action, reason)


# governor


def walk(rates: list[tuple[float, float]], *, speculating: bool = True, policy: Speculation = QPS) -> list[Governing]:
    """Decisions at (time, rate)."""
    state, seen = GovernorState(), []
    for now, rate in rates:
        state = governor.observe(state, policy, rate=rate, now=now)
        seen.append(
            governor.decide(state, policy, speculating=speculating, rate=rate, dwell=policy.dwell_s, now=now).action
        )
    return seen


def test_speculation_is_dropped_after_the_dwell_time_and_not_before() -> None:
    assert walk([(0, 9.0), (5, 9.0), (9.9, 9.0), (10.0, 9.0)]) == [Governing.KEEP] * 3 + [Governing.DROP]


def test_a_dip_starts_the_dwell_time_anew() -> None:
    assert walk([(0, 9.0), (9, 7.9), (10, 9.0), (19.9, 9.0), (20, 9.0)]) == [Governing.KEEP] * 4 + [Governing.DROP]


def test_speculation_is_resumed_below_the_lower_threshold_only() -> None:
    assert walk([(0, 6.0), (60, 6.0)], speculating=False) == [Governing.KEEP] * 2
    assert walk([(0, 3.9), (10, 3.9)], speculating=False) == [Governing.KEEP, Governing.RESUME]


def test_a_threshold_itself_is_not_crossed() -> None:
    assert walk([(0, 8.0), (100, 8.0)]) == [Governing.KEEP] * 2
    assert walk([(0, 4.0), (100, 4.0)], speculating=False) == [Governing.KEEP] * 2


def test_policy_off_decides_nothing() -> None:
    assert walk([(0, 1e6), (1e6, 1e6)], policy=Speculation()) == [Governing.KEEP] * 2


def test_after_a_refusal_it_rests() -> None:
    state = GovernorState(above_since=0.0, refused_until=50.0)
    assert governor.decide(state, QPS, speculating=True, rate=9.0, dwell=10.0, now=49.0).reason == "refused_before"
    assert governor.decide(state, QPS, speculating=True, rate=9.0, dwell=10.0, now=50.0).action is Governing.DROP


@given(st.lists(st.floats(4.0, 8.0), max_size=50), st.booleans())
def test_between_the_thresholds_nothing_ever_happens(rates: list[float], speculating: bool) -> None:
    seen = walk([(10.0 * i, rate) for i, rate in enumerate(rates)], speculating=speculating)
    assert set(seen) <= {Governing.KEEP}


def test_thresholds_that_would_flap_are_refused() -> None:
    with pytest.raises(ValueError, match="flap"):
        Speculation(policy="qps", drop_above=4.0, resume_below=4.0)


# switching


@pytest.mark.parametrize(
    ("facts", "action", "reason"),
    [
        (SwitchFacts(needed=5, free=5, unserved_s=999.0, max_switch_s=15.0), Switch.MAKE_BEFORE_BREAK, "both_fit"),
        (SwitchFacts(needed=6, free=5, unserved_s=15.0, max_switch_s=15.0), Switch.BREAK_BEFORE_MAKE, "short_enough"),
        (SwitchFacts(needed=6, free=5, unserved_s=15.1, max_switch_s=15.0), Switch.REFUSE, "switch_too_costly"),
        (SwitchFacts(needed=6, free=5, unserved_s=None, max_switch_s=15.0), Switch.REFUSE, "switch_too_costly"),
        (SwitchFacts(needed=6, free=None, unserved_s=540.0, max_switch_s=15.0), Switch.REFUSE, "switch_too_costly"),
        (SwitchFacts(needed=6, free=5, unserved_s=540.0, max_switch_s=None), Switch.BREAK_BEFORE_MAKE, "asked_for"),
    ],
)
def test_switching(facts: SwitchFacts, action: Switch, reason: str) -> None:
    decision = switching.decide(facts)
    assert (decision.action, decision.reason) == (action, reason)
    assert decision.evidence["needed_bytes"] == facts.needed


# rates


def test_a_rate_is_over_the_whole_window() -> None:
    rate = Rate(10.0)
    rate.add(20, 0.0)
    assert rate.value(0.0) == 2.0
    assert rate.value(9.9) == 2.0
    assert rate.value(10.0) == 0.0


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 50)), max_size=60))
def test_a_rate_counts_what_is_in_the_window(steps: list[tuple[float, int]]) -> None:
    rate, now, seen = Rate(10.0), 0.0, []
    for pause, count in steps:
        now += pause
        rate.add(count, now)
        seen.append((now, count))
    assert rate.value(now) == sum(c for t, c in seen if t > now - 10.0) / 10.0
