"""Groups: models that may not all be loaded at the same time, whatever the memory would bear.

Pure. A group says how many of its members may be loaded at once; an exclusive one also that nothing else may be
loaded beside any of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, model_validator

from orchestrator.models import Frozen, Name


class Group(Frozen):
    """`[[group]]`: models that share something which only some of them can have at a time."""

    name: Name
    members: Annotated[tuple[Name, ...], Field(min_length=1)]
    at_once: int = Field(default=1, gt=0)
    """How many of the members may be loaded at the same time."""
    exclusive: bool = False
    """Whether nothing else may be loaded beside a member."""

    @model_validator(mode="after")
    def _members(self) -> Group:
        twice = sorted({m for m in self.members if self.members.count(m) > 1})
        if twice:
            raise ValueError(f"member named twice: {', '.join(twice)}")
        return self


@dataclass(frozen=True, slots=True)
class Conflict:
    """`group` wants at least `go` of the loaded `models` gone before another one is loaded."""

    group: str
    models: frozenset[str]
    go: int


def conflicts(model: str, loaded: Set[str], groups: Sequence[Group]) -> tuple[Conflict, ...]:
    """What has to be unloaded before `model` may be loaded beside `loaded`; nothing where no group minds."""
    others = loaded - {model}
    found = []
    for group in groups:
        members = frozenset(group.members)
        if model in members:
            inside = frozenset(others & members)
            too_many = len(inside) + 1 - group.at_once
            if too_many > 0:
                found.append(Conflict(group.name, inside, too_many))
            outside = frozenset(others - members)
            if group.exclusive and outside:
                found.append(Conflict(group.name, outside, len(outside)))
        elif group.exclusive and others & members:
            inside = frozenset(others & members)
            found.append(Conflict(group.name, inside, len(inside)))
    return tuple(found)


def together(loaded: Iterable[str], groups: Sequence[Group]) -> bool:
    """Whether the groups allow these models to be loaded at the same time."""
    names = frozenset(loaded)
    return not any(conflicts(name, names, groups) for name in names)
