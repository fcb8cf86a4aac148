"""What may go, and what uses what stays. Pure: facts about each thing in, its fate out.

A thing goes only if Outrider brought it, nothing uses it, and nothing in the configuration or the
catalogue may want it again; `everything` takes the last of these too. Whatever is not known for sure
stays: a disk that is full can be told about, a model that is gone has to be fetched again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from orchestrator.decision import Decision

DAY = 86_400.0
RESTED = DAY
"""Seconds for which a leftover must not have changed. Something that is gone on with is not left over."""


class Kind(StrEnum):
    """What kind of thing it is. The first four belong to an option of `outrider prune` each."""

    IMAGE = "image"
    WEIGHTS = "weights"
    PARTIAL = "partial"
    """Weights that were on their way."""
    CACHE = "cache"
    """A compile cache's volume, or something in the state folder that can be made again."""
    LOG = "log"
    LEFTOVER = "leftover"
    """What a Podman service that was killed left in its temporary folder."""


class Group(StrEnum):
    """What a person can choose."""

    IMAGES = "images"
    WEIGHTS = "weights"
    CACHES = "caches"
    REST = "rest"


GROUPS: dict[Kind, Group] = {
    Kind.IMAGE: Group.IMAGES,
    Kind.WEIGHTS: Group.WEIGHTS,
    Kind.PARTIAL: Group.WEIGHTS,
    Kind.CACHE: Group.CACHES,
    Kind.LOG: Group.REST,
    Kind.LEFTOVER: Group.IMAGES,
}


@dataclass(frozen=True, slots=True)
class Thing:
    """One thing that takes space. `key` is how it is removed, `name` how people know it.

    `why` is the code of the reason for which it is superfluous, if nothing below keeps it. `size` is
    bytes and `age` seconds since it changed, None when unknown. `ours` is whether Outrider brought it.
    `used_by` are what needs it now, `wanted_by` what may need it again.
    """

    kind: Kind
    key: str
    name: str
    why: str
    size: int | None
    age: float | None = None
    ours: bool = True
    used_by: tuple[str, ...] = ()
    wanted_by: tuple[str, ...] = ()
    rests: float = 0.0
    """Seconds for which it must not have changed, in any case."""

    @property
    def id(self) -> str:
        """Unique among all things."""
        return f"{self.kind}:{self.key}"


@dataclass(frozen=True, slots=True)
class Wish:
    """What a person wants to be rid of: `groups` empty means all of them, `older_than` is seconds."""

    groups: frozenset[Group] = frozenset()
    everything: bool = False
    older_than: float = 0.0


class Fate(StrEnum):
    """What becomes of a thing."""

    GO = "remove"
    STAY = "keep"


def decide(thing: Thing, wish: Wish) -> Decision[Fate]:
    """Whether a thing goes; the reason says why, in both cases."""
    evidence: dict[str, object] = {"size": thing.size, "age_s": None if thing.age is None else round(thing.age, 1)}
    if not thing.ours:
        return Decision(Fate.STAY, "not_ours", evidence)
    if thing.used_by:
        return Decision(Fate.STAY, "in_use", {**evidence, "used_by": list(thing.used_by)})
    if wish.groups and GROUPS[thing.kind] not in wish.groups:
        return Decision(Fate.STAY, "not_asked_for", evidence)
    if thing.wanted_by and not wish.everything:
        return Decision(Fate.STAY, "wanted", {**evidence, "used_by": list(thing.wanted_by)})
    least = max(thing.rests, wish.older_than)
    if least > 0 and thing.age is None:
        return Decision(Fate.STAY, "age_unknown", evidence)
    if thing.age is not None and thing.age < least:
        return Decision(Fate.STAY, "too_young", evidence)
    return Decision(Fate.GO, thing.why, evidence)


def freed(things: Sequence[Thing], wish: Wish) -> int:
    """Bytes that would go, as far as sizes are known. Images share layers: it is at most so much."""
    return sum(thing.size or 0 for thing in things if decide(thing, wish).action is Fate.GO)


TEXTS: dict[str, str] = {
    "superseded": "a newer one has taken its place",
    "unnamed": "it has no name any more",
    "not_named": "no model and nothing in the catalogue names it",
    "no_model": "no model refers to it",
    "no_pin": "no model is pinned to this revision",
    "left_over": "it was never finished",
    "no_image": "its image is not here any more",
    "rebuildable": "it can be made again",
    "old_log": "a newer log is beside it",
    "not_ours": "Outrider did not bring it",
    "in_use": "it is used",
    "wanted": "it may be wanted again (--all removes it)",
    "not_asked_for": "not asked for",
    "too_young": "it changed in the last day, or in the days of --older-than",
    "age_unknown": "nobody knows how old it is",
}
"""Reason codes in words."""
