"""Which engine goes before the host freezes, and when: the numbers by themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.guard_policy import LOOKS, Candidate, Guarding, Shortage, Watch, decide, shortage, victim
from orchestrator.timing import Timing

GIB = 2**30
ENOUGH = Shortage(available=20 * GIB, reserve=8 * GIB, full_avg10=0.0, stalled=0.0, pressure=20.0)
LOW = replace(ENOUGH, available=7 * GIB)
SEEN = Watch(looks=LOOKS - 1)


def engine(
    name: str, since: float, *, preemptible: bool = False, priority: int = 0, leaving: bool = False
) -> Candidate:
    return Candidate(f"{name}-1", name, 1, preemptible, priority, since, leaving)


OLD, NEW = engine("old", 1.0), engine("new", 2.0)
SPARE = engine("spare", 0.5, preemptible=True)


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        (ENOUGH, None),
        (replace(ENOUGH, available=8 * GIB), None),
        (LOW, "memory_low"),
        (replace(ENOUGH, available=None), None),
        (replace(ENOUGH, available=None, full_avg10=None, stalled=None), None),
        (replace(ENOUGH, full_avg10=20.0, stalled=100.0), None),
        (replace(ENOUGH, full_avg10=20.1, stalled=100.0), "memory_pressure"),
        (replace(ENOUGH, full_avg10=60.0, stalled=3.0), None),
        (replace(ENOUGH, full_avg10=60.0, stalled=None), "memory_pressure"),
        (replace(LOW, full_avg10=None), "memory_low"),
        (replace(ENOUGH, available=None, full_avg10=90.0, stalled=90.0), "memory_pressure"),
    ],
)
def test_what_a_shortage_is(now: Shortage, reason: str | None) -> None:
    assert shortage(now) == reason


@pytest.mark.parametrize(
    ("engines", "who"),
    [
        ((OLD, NEW), "new"),
        ((NEW, OLD), "new"),
        ((OLD, NEW, SPARE), "spare"),
        ((SPARE, engine("spare2", 1.5, preemptible=True), NEW), "spare2"),
        ((OLD, NEW, SPARE, engine("going", 0.1, leaving=True)), "going"),
        ((engine("a", 1.0, priority=5), engine("b", 1.0)), "b"),
    ],
)
def test_who_goes(engines: tuple[Candidate, ...], who: str) -> None:
    chosen = victim(engines)
    assert chosen is not None
    assert chosen.deployment == who


@pytest.mark.parametrize(
    ("now", "watch", "action"),
    [
        (ENOUGH, SEEN, Guarding.REST),
        (LOW, Watch(), Guarding.WATCH),
        (LOW, SEEN, Guarding.STOP),
        (LOW, Watch(looks=9, going_for=0.5), Guarding.WAIT),
        (LOW, Watch(looks=9, going_for=2.5), Guarding.STOP),
        (ENOUGH, Watch(looks=9, going_for=0.5), Guarding.REST),
    ],
)
def test_what_is_done(now: Shortage, watch: Watch, action: Guarding) -> None:
    assert decide(now, watch, (OLD, NEW)).action is action


def test_without_engines_nothing_can_be_done() -> None:
    assert decide(LOW, SEEN, ()).action is Guarding.HELPLESS


def test_the_evidence_tells_the_story() -> None:
    said = decide(LOW, SEEN, (OLD, SPARE)).evidence
    assert (said["engine"], said["chosen"], said["others"]) == ("spare-1", "preemptible", ["old-1"])
    assert (said["available_bytes"], said["reserve_bytes"]) == (7 * GIB, 8 * GIB)


candidates = st.builds(
    Candidate,
    engine=st.uuids().map(str),
    deployment=st.just("m"),
    generation=st.integers(1, 9),
    preemptible=st.booleans(),
    priority=st.integers(-9, 9),
    since=st.floats(0, 1e9),
    leaving=st.booleans(),
)


@given(st.lists(candidates, max_size=6), st.randoms())
def test_one_goes_and_the_order_of_the_list_decides_nothing(engines: list[Candidate], random: object) -> None:
    chosen = victim(engines)
    shuffled = list(engines)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert victim(shuffled) == chosen
    if chosen is not None and not chosen.leaving:
        assert not any(e.leaving for e in engines)
        assert chosen.preemptible or not any(e.preemptible for e in engines)


def test_the_bar_can_be_met_at_any_scale() -> None:
    """A shortage that begins just after a look: so many looks, and then there must be time for the kill."""
    for scale in (0.01, 0.05, 1.0, 10.0):
        timing = Timing().scaled(scale)
        assert (LOOKS + 1) * timing.guard_period < timing.guard_kill
