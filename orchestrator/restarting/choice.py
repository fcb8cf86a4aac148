"""Which rung of a ladder is to be used, after what was given up. Pure.

Only downwards: the first rung below everything that was given up and that gives up what helps against each of
those faults. Ladders are made anew at each planning; what was given up is known by its `Key`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.faults import Gives, policy_of
from orchestrator.plan import Rung
from orchestrator.restarting.standing import PLAIN, GivenUp, Key, Standing

SAFER: Mapping[str, Gives] = {
    "piecewise_graphs": Gives.GRAPHS,
    "eager": Gives.GRAPHS,
    "less_batch": Gives.BATCH,
    "fewer_slots": Gives.SLOTS,
}
"""Rungs that launch the same with safer flags, and what each gives up beside what those before it did."""


@dataclass(frozen=True, slots=True)
class Step:
    """A rung as the choice sees it. `gave` is what it gives up of its own combination's plain launch."""

    key: Key
    gave: frozenset[Gives]


def steps(ladder: Sequence[Rung]) -> tuple[Step, ...]:
    """The ladder's rungs, best first."""
    found: list[Step] = []
    for rung in ladder:
        change = rung.change if rung.change in SAFER else PLAIN
        key = Key.of(rung.plan, change)
        before = found[-1].gave if found and found[-1].key.combination == key.combination else frozenset()
        gives = SAFER.get(rung.change)
        found.append(Step(key, before if gives is None else before | {gives}))
    return tuple(found)


def choose(ladder: Sequence[Step], standing: Standing) -> int | None:
    """The position of the rung to use; None when none is left."""
    left = {g.key: g for g in standing.left}
    lowest = max((n for n, step in enumerate(ladder) if step.key in left), default=-1)
    for position in range(lowest + 1, len(ladder)):
        if all(_helps(ladder, ladder[position], given_up) for given_up in left.values()):
            return position
    return None


def _helps(ladder: Sequence[Step], step: Step, given_up: GivenUp) -> bool:
    """Whether this rung gives up something that helps against what the other was given up for."""
    helps = policy_of(given_up.code).helps
    mine, theirs = step.key, given_up.key
    if mine.runtime != theirs.runtime and Gives.RUNTIME in helps:
        return True
    if (mine.method, mine.drafter) != (theirs.method, theirs.drafter) and Gives.METHOD in helps:
        return True
    if mine.combination != theirs.combination:
        return False
    already = next((s.gave for s in ladder if s.key == theirs), frozenset())
    return bool((step.gave - already) & helps)
