"""Who goes so that another model can come: the least valuable, by the bytes that are needed and the time it takes to
bring them back.

Pure. The answer is one of four: there is room; these have to go; wait, for what is in the way passes; it cannot come,
and who keeps it from coming. Nothing that answers requests, that is being loaded or that was loaded just now is
evicted; after `turn` seconds of waiting, one that has had its least residence is *drained*: it admits nothing more
and goes when its last answer has ended, so that a model that is never idle cannot keep another out for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

from orchestrator.decision import Decision
from orchestrator.demand.groups import Conflict, Group, conflicts
from orchestrator.demand.keeping import PASSING, Resident, kept, stays, worth

SEARCHED = 10
"""Up to so many candidates every subset is looked at; among more, they go one by one."""


class RoomStep(StrEnum):
    """What has to happen before a model can be loaded."""

    READY = "ready"
    EVICT = "evict"
    WAIT = "wait"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Asked:
    """A model that is to be loaded: bytes that it needs on each device, and what is free there (absent: unknown,
    and then nothing is evicted for it). `waited` is how long somebody has been waiting for it, in seconds."""

    name: str
    needs: Mapping[str, int]
    free: Mapping[str, int]
    waited: float = 0.0


@dataclass(frozen=True, slots=True)
class Rules:
    """What the owner says. Seconds."""

    groups: Sequence[Group] = ()
    residence: float = 0.0
    turn: float = 30.0


@dataclass(frozen=True, slots=True)
class _Demand:
    """What the set that goes must fulfil."""

    short: Mapping[str, int]
    conflicts: Sequence[Conflict]

    def met(self, going: Sequence[Resident]) -> bool:
        names = {r.name for r in going}
        enough = all(sum(r.sizes.get(d, 0) for r in going) >= size for d, size in self.short.items())
        return enough and all(len(names & c.models) >= c.go for c in self.conflicts)

    def useful(self, resident: Resident) -> bool:
        return any(resident.sizes.get(d, 0) > 0 for d in self.short) or any(
            resident.name in c.models for c in self.conflicts
        )


def decide(asked: Asked, residents: Sequence[Resident], rules: Rules) -> Decision[RoomStep]:
    """The evidence names who goes (`evict`, with `drain` for those that still answer), who stays in the way and why
    (`kept`), and the numbers."""
    others = [r for r in residents if r.name != asked.name]
    short = {d: size - asked.free[d] for d, size in asked.needs.items() if d in asked.free and size > asked.free[d]}
    demand = _Demand(short, conflicts(asked.name, frozenset(r.name for r in others if not r.wedged), rules.groups))
    numbers: dict[str, object] = {"needed_bytes": dict(asked.needs), "free_bytes": dict(asked.free)}
    if demand.conflicts:
        numbers["groups"] = sorted({c.group for c in demand.conflicts})
    if demand.met(()):
        return Decision(RoomStep.READY, "room", numbers)
    reasons = {r.name: kept(r, rules.residence) for r in others}
    able = [r for r in others if reasons[r.name] is None]
    drained = [r for r in others if _has_had_its_turn(r, asked, rules)]
    numbers["kept"] = {
        r.name: {"code": why.code, "text": why.text, "hint": why.hint}
        for r in others
        if demand.useful(r) and (why := reasons[r.name]) is not None
    }
    for candidates in (able, [*able, *drained]):
        going = cheapest(candidates, demand)
        if going is not None:
            return Decision(
                RoomStep.EVICT,
                "group" if not short else "memory",
                {
                    **numbers,
                    "evict": [r.name for r in going],
                    "drain": [r.name for r in going if r in drained],
                    "worth_s": {r.name: round(worth(r), 1) for r in going},
                    "freed_bytes": {d: sum(r.sizes.get(d, 0) for r in going) for d in short},
                },
            )
    passing = [r for r in others if (why := reasons[r.name]) is not None and why.code in PASSING]
    if demand.met([*able, *passing]):
        return Decision(
            RoomStep.WAIT, _first_code(passing, reasons), {**numbers, "again_in_s": _soonest(passing, rules)}
        )
    return Decision(RoomStep.REFUSE, "no_room" if short else "group_taken", numbers)


def _has_had_its_turn(resident: Resident, asked: Asked, rules: Rules) -> bool:
    """Whether it is in use and nothing else speaks for it any more: others have waited for long enough."""
    why = kept(resident, rules.residence)
    over = stays(resident, rules.residence) == 0
    return why is not None and why.code == "in_use" and over and asked.waited >= rules.turn


def cheapest(candidates: Sequence[Resident], demand: _Demand) -> tuple[Resident, ...] | None:
    """The set that fulfils the demand at the least cost: the lowest priorities first, then the least expected seconds
    of loading, then the fewest bytes; None when not even all together do."""
    useful = [r for r in candidates if demand.useful(r)]
    if not demand.met(useful):
        return None
    if len(useful) > SEARCHED:
        return _one_by_one(useful, demand)
    sets = (s for n in range(1, len(useful) + 1) for s in combinations(useful, n) if demand.met(s))
    return min(sets, key=_cost)


def _one_by_one(useful: Sequence[Resident], demand: _Demand) -> tuple[Resident, ...]:
    """The least valuable first until it is enough; then whoever need not go after all stays, dearest first."""
    order = sorted(useful, key=lambda r: _cost((r,)))
    going: list[Resident] = []
    for resident in order:
        if demand.met(going):
            break
        going.append(resident)
    for resident in sorted(going, key=lambda r: _cost((r,)), reverse=True):
        rest = [r for r in going if r is not resident]
        if demand.met(rest):
            going = rest
    return tuple(going)


def _cost(going: Iterable[Resident]) -> tuple[int, float, int, tuple[str, ...]]:
    found = tuple(going)
    return (
        max(r.priority for r in found),
        sum(worth(r) for r in found),
        sum(sum(r.sizes.values()) for r in found),
        tuple(sorted(r.name for r in found)),
    )


def _first_code(passing: Sequence[Resident], reasons: Mapping[str, object]) -> str:
    codes = [getattr(reasons[r.name], "code", "") for r in passing]
    return next((code for code in ("in_use", "loading", "just_loaded", "leaving") if code in codes), "waiting")


def _soonest(passing: Sequence[Resident], rules: Rules) -> float | None:
    """Seconds until the first least residence is over; None when nothing in the way has one left."""
    left = [stays(r, rules.residence) for r in passing]
    return min((round(seconds, 3) for seconds in left if seconds > 0), default=None)
