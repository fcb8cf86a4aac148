"""When a disk is low, and what that stops. Pure.

A disk is low when the free part of its bytes or of its inodes falls below the low water, and is
low until both are a hundredth above it: what is freed and taken again right at the mark does not
open and close the issue at each look. A low disk stops pulls onto itself. It never stops an engine.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from orchestrator.decision import Decision

MARGIN = 0.01
"""How far above the low water a disk has to come, as a part of it, before it is no longer low."""


class Use(StrEnum):
    """What of Outrider's lies on a disk."""

    STATE = "state"
    STORE = "store"
    IMAGES = "images"
    TEMPORARY = "temporary"
    """Where Podman puts the layers of an image that it pulls."""


WRITES: dict[str, frozenset[Use]] = {
    "image_pull": frozenset({Use.IMAGES, Use.TEMPORARY}),
    "model_pull": frozenset({Use.STORE}),
    "model_add": frozenset({Use.STORE}),
}
"""Kind of job to where it writes much."""


@dataclass(frozen=True, slots=True)
class Level:
    """One file system. Bytes and inodes; inodes are None where the file system makes them as it goes."""

    mount: str
    uses: frozenset[Use]
    total: int
    free: int
    inodes: int | None
    inodes_free: int | None

    @property
    def share(self) -> float:
        """The free part of what is scarcer, 0..1."""
        shares = [self.free / self.total] if self.total else []
        if self.inodes and self.inodes_free is not None:
            shares.append(self.inodes_free / self.inodes)
        return min(shares, default=1.0)


class Water(StrEnum):
    """How a disk stands."""

    FINE = "fine"
    LOW = "low"


def decide(level: Level, *, low_water: float, was_low: bool) -> Decision[Water]:
    """How a disk stands, given how it stood."""
    bar = round(min(low_water + MARGIN, 1.0), 9) if was_low and low_water > 0 else low_water
    evidence: dict[str, object] = {
        "mount": level.mount,
        "holds": sorted(use.value for use in level.uses),
        "free_bytes": level.free,
        "total_bytes": level.total,
        "low_water": low_water,
    }
    if level.inodes is not None:
        evidence |= {"free_inodes": level.inodes_free, "total_inodes": level.inodes}
    if level.share >= bar:
        return Decision(Water.FINE, "above_low_water", evidence)
    short_of_bytes = level.total > 0 and level.free / level.total < bar
    return Decision(Water.LOW, "few_bytes" if short_of_bytes else "few_inodes", evidence)


def stopped(low: Sequence[Collection[Use]], kind: str) -> bool:
    """Whether a job of this kind writes to one of the low disks, each told by what lies on it."""
    return any(WRITES.get(kind, frozenset()) & frozenset(uses) for uses in low)
