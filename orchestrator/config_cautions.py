"""What a configuration says that is allowed and cannot be meant: a group's member that no model has, a group that
keeps nobody out, a pinned member for whose sake the others never come.

Pure. Such a configuration is taken up as it is: a model that is removed must not keep the daemon from starting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from orchestrator.config_problems import Problem, nearest
from orchestrator.demand.groups import Group
from orchestrator.models import ModelEntry

if TYPE_CHECKING:
    from orchestrator.config import Config

Known = Callable[[str], ModelEntry | None]


def cautions(config: Config, file: str, known: Known, names: Iterable[str]) -> tuple[Problem, ...]:
    """All that is odd. `file` is where settings stand; `known` gives a model by its name or an alias, and `names` are
    the names that there are."""
    found: list[Problem] = []
    for group in config.group:
        found.extend(_members(group, file, known, tuple(names)))
        found.extend(_rules(group, file, known))
    for entry in config.models:
        if entry.pinned and entry.ttl_s is not None:
            where = config.origins.get(entry.name, file)
            text = "is never reached, for the model is pinned"
            found.append(Problem(where, f"model[{entry.name}].ttl_s", text, "remove ttl_s, or set pinned = false"))
    return tuple(found)


def _members(group: Group, file: str, known: Known, names: tuple[str, ...]) -> Iterator[Problem]:
    key = f"group[{group.name}].members"
    for member in group.members:
        entry = known(member)
        if entry is None:
            near = nearest(member, names)
            hint = f"did you mean {near!r}?" if near else "`outrider models` lists the models"
            yield Problem(file, key, f"{member!r} is no model here, so it keeps nobody out", hint)
        elif entry.name != member:
            hint = f"write {entry.name!r}"
            yield Problem(file, key, f"{member!r} is another name of {entry.name!r}, and groups go by names", hint)


def _rules(group: Group, file: str, known: Known) -> Iterator[Problem]:
    if group.at_once >= len(group.members) and not group.exclusive:
        many = f"{len(group.members)} member{'' if len(group.members) == 1 else 's'}"
        text = f"is {group.at_once} for {many}, so the group keeps nobody out"
        yield Problem(
            file, f"group[{group.name}].at_once", text, "lower it, add the models meant, or set exclusive = true"
        )
    pinned = [m for m in group.members if (entry := known(m)) is not None and entry.pinned]
    key = f"group[{group.name}].members"
    if not pinned:
        return
    who, are, never = ", ".join(pinned), "is" if len(pinned) == 1 else "are", "and once loaded never makes way"
    hint = f"set pinned = false for {who}, or take {'it' if len(pinned) == 1 else 'them'} out of the group"
    if len(pinned) >= group.at_once and len(group.members) > group.at_once:
        rest = [m for m in group.members if m not in pinned]
        whom = f"{', '.join(rest)} cannot come any more" if rest else f"only {group.at_once} of them can ever be loaded"
        yield Problem(file, key, f"{who} {are} pinned {never}: then {whom}", hint)
    elif group.exclusive:
        yield Problem(file, key, f"{who} {are} pinned {never}: then no model outside of the group can come", hint)
