"""Which build of llama.cpp knows which option and which value, from `flags.toml`. Pure.

A version is a build number (`b11434`, `b11434+`). An image without one is taken to be at least `ASSUMED`: of an unknown
version only that is said which every build from there on knows.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

ASSUMED = 10434
"""The oldest build that an image of unknown version is taken to be: the first of those read that has every method."""

_BUILD = re.compile(r"^b?(\d{4,6})(\+?)$")


@dataclass(frozen=True, slots=True)
class Flag:
    """One option: its names, those that switch it off, how many words follow, the builds that know it."""

    names: tuple[str, ...]
    negative: tuple[str, ...] = ()
    values: int = 0
    first: int | None = None
    last: int | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """`flags.toml`: options by each of their names, values that came later, what replaces what was removed."""

    builds: tuple[int, ...]
    flags: Mapping[str, Flag]
    values: Mapping[tuple[str, str], int]
    renamed: Mapping[str, str]


@cache
def table() -> Table:
    """The shipped table. Blocking (one small file), once."""
    data = tomllib.loads((resources.files(__package__) / "flags.toml").read_text(encoding="utf-8"))
    flags: dict[str, Flag] = {}
    for entry in data["flag"]:
        flag = Flag(
            tuple(entry["names"]),
            tuple(entry.get("negative", ())),
            entry.get("values", 0),
            entry.get("first"),
            entry.get("last"),
        )
        flags.update(dict.fromkeys((*flag.names, *flag.negative), flag))
    return Table(
        tuple(data["builds"]),
        flags,
        {(entry["flag"], entry["value"]): entry["first"] for entry in data["value"]},
        {old: entry["new"] for entry in data["renamed"] for old in entry["old"]},
    )


def oldest() -> int:
    """The oldest build whose options were read."""
    return table().builds[0]


def build_of(version: str | None) -> int | None:
    """The build number of a version: 11434 for `b11434`; None for what is none.

    `b11434+` is that build or a newer one. Where builds after it were read it is unknown, for they may have removed
    what it knows.
    """
    found = _BUILD.match(version or "")
    if found is None or (found[2] and int(found[1]) < table().builds[-1]):
        return None
    return int(found[1])


def knows(build: int | None, flag: str, value: str | None = None) -> bool:
    """Whether a build has the option (and the value); for None, whether every build from `ASSUMED` on has."""
    entry = table().flags.get(flag)
    if entry is None:
        return False
    since = entry.first or 0
    if value is not None:
        since = max(since, table().values.get((entry.names[0], value), 0))
    if build is None:
        return since <= ASSUMED and entry.last is None
    return since <= build and (entry.last is None or build <= entry.last)


def replacement(flag: str) -> str | None:
    """What to write instead of an option that was removed; None where nothing was."""
    return table().renamed.get(flag)
