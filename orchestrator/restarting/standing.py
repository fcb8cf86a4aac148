"""Where a deployment stands on its ladder: its failures, what it gave up, and when. Pure values.

Kept as JSON in the ledger. Durations are monotonic within one boot; across boots wall time has to do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.plan import Plan

PLAIN = "plan"
"""The change of a rung that gives up no flags: the plan, or another method or runtime, as it is."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in time: monotonic seconds of a boot, and Unix seconds for people and other boots."""

    boot: str
    now: float
    wall: float

    def since(self, earlier: Moment) -> float:
        """Seconds from `earlier` to this, 0 at least."""
        gone = self.now - earlier.now if self.boot == earlier.boot else self.wall - earlier.wall
        return max(0.0, gone)


@dataclass(frozen=True, slots=True)
class Key:
    """What distinguishes a rung whatever its size comes out as: sizes follow free memory, and change."""

    runtime: str
    variant: str
    method: str
    drafter: str | None
    change: str = PLAIN

    @classmethod
    def of(cls, plan: Plan, change: str = PLAIN) -> Key:
        return cls(plan.runtime, plan.variant, plan.method.value, plan.drafter, change)

    @property
    def combination(self) -> tuple[str, str, str, str | None]:
        return self.runtime, self.variant, self.method, self.drafter


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure on a rung: how long the engine had served, and how it ended."""

    key: Key
    code: str
    ran_for: float


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A rung that was left, why and when. On trial it is used again, and left at the first failure."""

    key: Key
    text: str
    """What the rung was, in words."""
    code: str
    failures: int
    at: Moment
    detail: str = ""
    hint: str | None = None
    trial: bool = False


@dataclass(frozen=True, slots=True)
class Here:
    """The rung that the plan of this digest is."""

    digest: str
    key: Key
    text: str
    since: float
    """Unix seconds."""


@dataclass(frozen=True, slots=True)
class Standing:
    """All that is remembered of a deployment. `count` is how many failures there were in a row, for the back-off."""

    count: int = 0
    failures: tuple[Failure, ...] = ()
    given_up: tuple[GivenUp, ...] = ()
    here: Here | None = None

    @property
    def left(self) -> tuple[GivenUp, ...]:
        """The rungs that are not to be used now."""
        return tuple(g for g in self.given_up if not g.trial)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Standing:
        """Read `to_dict` back; ValueError for anything else."""
        try:
            here = data["here"]
            return cls(
                count=int(data["count"]),
                failures=tuple(Failure(Key(**f["key"]), str(f["code"]), float(f["ran_for"])) for f in data["failures"]),
                given_up=tuple(
                    GivenUp(**{**g, "key": Key(**g["key"]), "at": Moment(**g["at"])}) for g in data["given_up"]
                ),
                here=None if here is None else Here(**{**here, "key": Key(**here["key"])}),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"no standing: {error}") from error
