"""Reads catalogue files: those that ship, and those of the user's `catalog.d`, which may also drop what ships.

A file holds tables `[[model]]`, `[[image]]`, `[[combination]]`, `[[restriction]]`, `[[runtime]]` and `[[handled]]`.
Models, images and runtimes are known by `name`, the others by `id`. A table of the user's replaces the shipped one
of the same name whole; one with only its name and `disabled = true` drops it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from orchestrator.catalogue.restrictions import Restriction
from orchestrator.catalogue.types import Catalogue, Combination, Handled, ImageEntry, UnsupportedRuntime
from orchestrator.config_files import clashes, read_toml, validated
from orchestrator.config_problems import ConfigProblems, Problem
from orchestrator.models import Frozen, ModelEntry


class CatalogueFile(Frozen):
    """What a catalogue file may hold."""

    model: tuple[ModelEntry, ...] = ()
    image: tuple[ImageEntry, ...] = ()
    combination: tuple[Combination, ...] = ()
    restriction: tuple[Restriction, ...] = ()
    runtime: tuple[UnsupportedRuntime, ...] = ()
    handled: tuple[Handled, ...] = ()


FIELDS: Mapping[str, str] = {
    "model": "models",
    "image": "images",
    "combination": "combinations",
    "restriction": "restrictions",
    "runtime": "runtimes",
    "handled": "handled",
}
"""A table's name in a file, and its entries' in a `Catalogue`."""


class Layer(CatalogueFile):
    """What several files say together. `origins`: `KIND NAME` -> file; `dropped`: the same of what is disabled."""

    origins: Mapping[str, str] = Field(default_factory=dict)
    dropped: Mapping[str, str] = Field(default_factory=dict)


def key_of(kind: str) -> str:
    """By what a kind's entries are known: `name` or `id`."""
    return "name" if kind in ("model", "image", "runtime") else "id"


def name_of(entry: object) -> str:
    """An entry's name, or its id."""
    return str(getattr(entry, "name", None) or getattr(entry, "id", ""))


def files_in(folder: Path, problems: list[Problem]) -> tuple[Path, ...]:
    """The files of `catalog.d` that count, by name: `*.toml`, no dot files, no editors' backups. None is no folder."""
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return ()
    except OSError as error:
        problems.append(Problem(str(folder), None, f"cannot be read: {error.strerror}", "it must be a readable folder"))
        return ()
    return tuple(folder / n for n in names if n.endswith(".toml") and not n.startswith((".", "#", "~")))


def read(
    files: Iterable[Path], problems: list[Problem], taken: dict[str, tuple[str, str]] | None = None
) -> Layer:  # fmt: skip
    """Read files, in their order; what is wrong is added to `problems`, by file and key, and left out.

    `taken` are models' names and aliases that other files have: each means one model.
    """
    taken = {} if taken is None else taken
    found: dict[str, list[Any]] = {kind: [] for kind in FIELDS}
    origins: dict[str, str] = {}
    dropped: dict[str, str] = {}
    for file in files:
        data = read_toml(file, problems)
        if data is None:
            continue
        problems.extend(clashes(file, data, taken))
        for name in _drop(file, data, problems):
            dropped[name] = str(file)
        read_file = validated(CatalogueFile, data, file, problems, dates=True)
        if read_file is None:
            continue
        for kind in FIELDS:
            for entry in getattr(read_file, kind):
                name = f"{kind} {name_of(entry)}"
                if name in origins and kind != "model":  # models' names are compared with their aliases, above
                    key = f"{kind}[{name_of(entry)}].{key_of(kind)}"
                    where = "this file" if origins[name] == str(file) else origins[name]
                    problems.append(
                        Problem(str(file), key, f"is already in {where}", "rename one of them, or remove one")
                    )
                origins[name] = str(file)
                found[kind].append(entry)
    return Layer(**{kind: tuple(entries) for kind, entries in found.items()}, origins=origins, dropped=dropped)


def _drop(file: Path, data: dict[str, Any], problems: list[Problem]) -> Iterable[str]:
    """Takes the tables with `disabled` out of `data`, and names what they drop."""
    for kind in FIELDS:
        tables = data.get(kind)
        if not isinstance(tables, list):
            continue
        kept: list[object] = []
        for table in tables:
            if not isinstance(table, dict) or "disabled" not in table:
                kept.append(table)
                continue
            key, rest = key_of(kind), {k: v for k, v in table.items() if k != "disabled"}
            name = rest.get(key)
            where = f"{kind}[{name if isinstance(name, str) else len(kept)}]"
            if table["disabled"] is False:
                kept.append(rest)
            elif table["disabled"] is not True:
                problems.append(
                    Problem(str(file), f"{where}.disabled", "must be true or false", "write disabled = true")
                )
            elif set(rest) != {key} or not isinstance(name, str):
                problems.append(
                    Problem(
                        str(file),
                        where,
                        f"is disabled, and says more or less than its {key}",
                        f'write only {key} = "..." and disabled = true',
                    )
                )
            else:
                yield f"{kind} {name}"
        data[kind] = kept


def laid_over(base: Catalogue, layer: Layer) -> Catalogue:
    """The catalogue with these files' entries: what has the name of one in it replaces it, in its place."""
    gone = set(layer.dropped)
    parts: dict[str, Any] = {}
    for kind, field in FIELDS.items():
        entries = {name_of(e): e for e in getattr(base, field) if f"{kind} {name_of(e)}" not in gone}
        entries |= {name_of(e): e for e in getattr(layer, kind)}
        parts[field] = tuple(entries.values())
    theirs = {name.removeprefix("model "): file for name, file in layer.origins.items() if name.startswith("model ")}
    models = {model.name for model in parts["models"]}
    parts["origins"] = {**{n: f for n, f in base.origins.items() if n in models}, **theirs}
    parts["sources"] = {**base.sources, **layer.origins}
    return base.model_copy(update=parts)


def catalogue(files: Iterable[Path], origin: str) -> Catalogue:
    """A catalogue of these files alone. Raises `ConfigProblems`; `origin` is said of its models."""
    problems: list[Problem] = []
    layer = read(files, problems)
    if problems:
        raise ConfigProblems(problems)
    made = laid_over(Catalogue(), layer)
    return made.model_copy(update={"origins": {m.name: origin for m in made.models}, "sources": {}})
