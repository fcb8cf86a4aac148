"""Who goes so that another can come: pure, with the numbers that decide."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.demand import groups, idle, keeping, room
from orchestrator.demand.groups import Group
from orchestrator.demand.idle import Idling
from orchestrator.demand.keeping import Resident
from orchestrator.demand.room import Asked, RoomStep, Rules

GIB = 2**30


def resident(name: str, size: int = 4, **more: Any) -> Resident:
    """Loaded long ago, idle, and of `size` GiB on the GPU."""
    return Resident(
        name, **{"sizes": {"gpu": size * GIB}, "resident_s": 1000.0, "idle_s": 100.0, "load_s": 10.0, **more}
    )


def asked(need: int, free: int, **more: Any) -> Asked:
    return Asked("new", {"gpu": need * GIB}, {"gpu": free * GIB}, **more)


RULES = Rules(residence=30.0, turn=30.0)


def test_where_there_is_room_nobody_goes() -> None:
    decision = room.decide(asked(4, 4), [resident("a")], RULES)
    assert (decision.action, decision.reason) == (RoomStep.READY, "room")


def test_nothing_is_evicted_for_memory_that_nobody_could_read() -> None:
    decision = room.decide(Asked("new", {"gpu": 8 * GIB}, {}), [resident("a")], RULES)
    assert decision.action is RoomStep.READY


@pytest.mark.parametrize(
    ("residents", "going"),
    [
        ([resident("quick", load_s=5), resident("slow", load_s=500)], ["quick"]),
        ([resident("fresh", idle_s=1), resident("stale", idle_s=5000)], ["stale"]),
        ([resident("dear", priority=5, load_s=1), resident("cheap", load_s=100)], ["cheap"]),
        ([resident("a", 2, load_s=3), resident("b", 2, load_s=3), resident("c", 4, load_s=10)], ["a", "b"]),
        ([resident("a", 2, load_s=6), resident("b", 2, load_s=6), resident("c", 4, load_s=10)], ["c"]),
        ([resident("unknown", load_s=None), resident("known", load_s=20)], ["known"]),
        ([resident("big", 8), resident("small", 4)], ["small"]),
        ([resident("none", sizes={"other": 64 * GIB}), resident("some")], ["some"]),
    ],
    ids=["load time", "last use", "priority", "two cheap", "one big", "unknown load", "fewest bytes", "device"],
)
def test_the_least_valuable_goes(residents: list[Resident], going: list[str]) -> None:
    for order in (residents, residents[::-1]):
        decision = room.decide(asked(6, 2), order, RULES)
        assert (decision.action, decision.reason) == (RoomStep.EVICT, "memory")
        assert sorted(decision.evidence["evict"]) == going  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("more", "action", "code"),
    [
        ({"in_flight": 1}, RoomStep.WAIT, "in_use"),
        ({"waiting": 1}, RoomStep.WAIT, "in_use"),
        ({"loading": True}, RoomStep.WAIT, "loading"),
        ({"leaving": True}, RoomStep.WAIT, "leaving"),
        ({"resident_s": 29.5}, RoomStep.WAIT, "just_loaded"),
        ({"on_demand": False}, RoomStep.REFUSE, "runs_always"),
        ({"pinned": True}, RoomStep.REFUSE, "pinned"),
        ({"paused_by": "me"}, RoomStep.REFUSE, "paused"),
    ],
    ids=lambda v: v if isinstance(v, str) else None,
)
def test_what_keeps_a_model_loaded(more: dict[str, Any], action: RoomStep, code: str) -> None:
    decision = room.decide(asked(6, 2), [resident("a", **more)], RULES)
    assert decision.action is action
    assert decision.evidence["kept"]["a"]["code"] == code  # type: ignore[index]
    if action is RoomStep.WAIT:
        assert decision.reason == code
    if code == "just_loaded":
        assert decision.evidence["again_in_s"] == 0.5


def test_what_could_never_fit_is_refused_at_once_although_something_passes() -> None:
    decision = room.decide(asked(60, 2), [resident("a", in_flight=1), resident("b")], RULES)
    assert (decision.action, decision.reason) == (RoomStep.REFUSE, "no_room")


def test_a_model_that_is_never_idle_is_drained_after_a_turn_and_not_before_its_residence_is_over() -> None:
    busy = resident("busy", in_flight=3)
    assert room.decide(asked(6, 2, waited=29.0), [busy], RULES).action is RoomStep.WAIT
    decision = room.decide(asked(6, 2, waited=30.0), [busy], RULES)
    assert (decision.action, decision.evidence["drain"]) == (RoomStep.EVICT, ["busy"])
    new = resident("busy", in_flight=3, resident_s=10.0)
    assert room.decide(asked(6, 2, waited=99.0), [new], RULES).action is RoomStep.WAIT
    pinned = resident("busy", in_flight=3, pinned=True)
    assert room.decide(asked(6, 2, waited=99.0), [pinned], RULES).action is RoomStep.REFUSE


def test_members_of_a_group_take_turns_though_memory_would_bear_both() -> None:
    rules = Rules((Group(name="g", members=("new", "a", "b"), at_once=2),), 30.0, 30.0)
    assert room.decide(asked(1, 64), [resident("a")], rules).action is RoomStep.READY
    decision = room.decide(asked(1, 64), [resident("a", load_s=1), resident("b")], rules)
    assert (decision.action, decision.reason) == (RoomStep.EVICT, "group")
    assert (decision.evidence["evict"], decision.evidence["groups"]) == (["a"], ["g"])
    taken = [resident("a", on_demand=False), resident("b", pinned=True)]
    assert room.decide(asked(1, 64), taken, rules).reason == "group_taken"


def test_an_exclusive_group_has_the_host_to_itself_both_ways() -> None:
    mine = (Group(name="g", members=("new", "friend"), at_once=2, exclusive=True),)
    decision = room.decide(asked(1, 64), [resident("friend"), resident("x"), resident("y")], Rules(mine))
    assert sorted(decision.evidence["evict"]) == ["x", "y"]  # type: ignore[call-overload]
    theirs = (Group(name="g", members=("a", "b"), at_once=2, exclusive=True),)
    assert sorted(room.decide(asked(1, 64), [resident("a"), resident("b")], Rules(theirs)).evidence["evict"]) == [  # type: ignore[call-overload]
        "a",
        "b",
    ]


SIZES = st.integers(min_value=0, max_value=6)
RESIDENTS = st.lists(
    st.builds(
        Resident,
        st.sampled_from("abcdefghijklmn"),
        sizes=st.fixed_dictionaries({"gpu": SIZES, "host": SIZES}),
        on_demand=st.booleans(),
        pinned=st.booleans(),
        loading=st.booleans(),
        in_flight=st.integers(min_value=0, max_value=2),
        resident_s=st.one_of(st.none(), st.floats(min_value=0, max_value=100)),
        idle_s=st.one_of(st.none(), st.floats(min_value=0, max_value=1000)),
        load_s=st.one_of(st.none(), st.floats(min_value=1, max_value=500)),
        priority=st.integers(min_value=-1, max_value=1),
    ),
    max_size=13,
    unique_by=lambda r: r.name,
)
GROUPS = st.lists(
    st.builds(
        Group,
        name=st.sampled_from(("g", "h")),
        members=st.lists(st.sampled_from(("new", *"abcd")), min_size=1, unique=True).map(tuple),
        at_once=st.integers(min_value=1, max_value=3),
        exclusive=st.booleans(),
    ),
    max_size=2,
)


@given(RESIDENTS, GROUPS, st.fixed_dictionaries({"gpu": SIZES, "host": SIZES}), SIZES, st.floats(0, 60))
def test_whatever_the_residents_the_answer_is_safe_and_enough(
    residents: list[Resident], rules_groups: list[Group], needs: dict[str, int], free: int, waited: float
) -> None:
    rules = Rules(rules_groups, 30.0, 30.0)
    left = {"gpu": free, "host": free}
    decision = room.decide(Asked("new", needs, left, waited), residents, rules)
    by_name = {r.name: r for r in residents}
    if decision.action is RoomStep.READY:
        assert all(needs[d] <= left[d] for d in needs)
        assert not groups.conflicts("new", frozenset(by_name), rules_groups)
        return
    may = [r for r in residents if keeping.kept(r, 30.0) is None]
    if decision.action is not RoomStep.EVICT:
        # nothing that may go would have been enough
        going = {r.name for r in may}
        short = any(needs[d] > left[d] + sum(r.sizes[d] for r in may) for d in needs)
        assert short or groups.conflicts("new", frozenset(by_name) - going, rules_groups)
        return
    going = set(decision.evidence["evict"])  # type: ignore[call-overload]
    drained = set(decision.evidence["drain"])  # type: ignore[call-overload]
    for name in going:
        why = keeping.kept(by_name[name], 30.0)
        assert why is None or (name in drained and why.code == "in_use" and waited >= 30.0)
        assert not by_name[name].pinned
        assert by_name[name].on_demand
        assert not by_name[name].loading
    assert not groups.conflicts("new", frozenset(by_name) - going, rules_groups)
    for device, size in needs.items():
        assert size <= left[device] + sum(by_name[n].sizes[device] for n in going)
    for name in going:  # and no more than was needed
        fewer = going - {name}
        short = any(needs[d] > left[d] + sum(by_name[n].sizes[d] for n in fewer) for d in needs)
        assert short or groups.conflicts("new", frozenset(by_name) - fewer, rules_groups)


@given(st.lists(st.sampled_from("abcd"), unique=True), GROUPS)
def test_together_means_that_each_pair_and_count_is_allowed(loaded: list[str], found: list[Group]) -> None:
    allowed = groups.together(loaded, found)
    broken = False
    for group in found:
        inside = [n for n in loaded if n in group.members]
        broken |= len(inside) > group.at_once
        broken |= group.exclusive and any(
            (a in group.members) != (b in group.members) for a, b in combinations(loaded, 2)
        )
    assert allowed is not broken


@pytest.mark.parametrize(
    ("more", "ttl", "heard", "action", "reason"),
    [
        ({}, None, True, Idling.KEEP, "no_ttl"),
        ({"idle_s": 59.0}, 60.0, True, Idling.KEEP, "not_idle_long_enough"),
        ({"idle_s": 60.0}, 60.0, True, Idling.UNLOAD, "idle"),
        ({"idle_s": 60.0}, 60.0, None, Idling.UNLOAD, "idle"),
        ({"idle_s": 60.0}, 60.0, False, Idling.KEEP, "gateway_silent"),
        ({"idle_s": 60.0, "in_flight": 1}, 60.0, True, Idling.KEEP, "in_use"),
        ({"idle_s": 60.0, "pinned": True}, 60.0, True, Idling.KEEP, "pinned"),
        ({"idle_s": 60.0, "on_demand": False}, 60.0, True, Idling.KEEP, "runs_always"),
        ({"idle_s": 60.0, "paused_by": "me"}, 60.0, True, Idling.KEEP, "paused"),
        ({"idle_s": None}, 60.0, True, Idling.KEEP, "not_idle_long_enough"),
    ],
    ids=lambda v: v if isinstance(v, str) else None,
)
def test_when_an_idle_model_is_unloaded(
    more: dict[str, Any], ttl: float | None, heard: bool | None, action: Idling, reason: str
) -> None:
    decision = idle.decide(resident("a", **more), ttl=ttl, heard=heard)
    assert (decision.action, decision.reason) == (action, reason)


def test_an_engine_that_nothing_can_end_is_neither_waited_for_nor_counted_in_a_group() -> None:
    """Two that waited for what the other one had left would wait for ever."""
    left = resident("left", wedged=True, loading=True)
    refused = room.decide(asked(4, 0), [left], RULES)
    assert (refused.action, refused.reason) == (RoomStep.REFUSE, "no_room")
    assert "'code': 'wedged'" in str(refused.evidence["kept"])
    pair = Rules((Group(name="pair", members=("new", "left")),))
    assert room.decide(asked(4, 4), [left], pair).action is RoomStep.READY
