"""Removing what was pulled: what another model uses stays, and records say what is there. Every function blocks."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from orchestrator.errors import Conflict
from orchestrator.models import ModelEntry
from orchestrator.weights import shelf
from orchestrator.weights.choosing import Source, source_of, things
from orchestrator.weights.shelf import Held


def holders(store: Path, entry: ModelEntry) -> Iterator[tuple[Source, Held]]:
    """A model's sources that are here whole."""
    for thing in things(entry):
        source = source_of(thing)
        held = None if source is None else shelf.find(store, source)
        if source is not None and held is not None:
            yield source, held


def _users(store: Path, entries: Sequence[ModelEntry]) -> dict[Path, set[str]]:
    """Which models use each file."""
    users: dict[Path, set[str]] = {}
    for entry in entries:
        for _, held in holders(store, entry):
            for file in held.files:
                users.setdefault(file, set()).add(entry.name)
    return users


def check_unused(store: Path, entry: ModelEntry, entries: Iterable[ModelEntry]) -> None:
    """Raises `Conflict` when another model uses weights of this one."""
    mine = {file for _, held in holders(store, entry) for file in held.files}
    for other in entries:
        if other.name == entry.name:
            continue
        shared = {file for _, held in holders(store, other) for file in held.files} & mine
        if shared:
            raise Conflict(
                f"the weights of {entry.name} are also those of {other.name}: they stay",
                hint=f"`outrider model rm {entry.name}` without --weights forgets the model alone",
                evidence={"files": sorted(str(f) for f in shared)[:10], "model": other.name},
            )


def check_still(entry: ModelEntry, coming: Collection[str]) -> None:
    """Raises `Conflict` when something is being fetched from a repository of this model. Does not block."""
    mine = {source.repository for thing in things(entry) if (source := source_of(thing)) is not None}
    if busy := sorted(mine & set(coming)):
        raise Conflict(
            f"weights of {busy[0]} are being fetched right now",
            hint=f"when that pull has ended; `outrider model rm {entry.name}` without --weights need not wait",
            evidence={"repositories": busy},
        )


def remove_weights(store: Path, entry: ModelEntry, entries: Iterable[ModelEntry]) -> int:
    """Remove what was pulled for a model, partial files included; the bytes of it.

    Raises `Conflict` when another model uses any of it; nothing is removed then.
    """
    others = [e for e in entries if e.name != entry.name]
    check_unused(store, entry, others)
    kept = _users(store, others)
    removed = 0
    for source in {s for t in things(entry) if (s := source_of(t)) is not None}:
        folder = shelf.repository_folder(store, source.repository)
        if not folder.is_dir():
            continue
        if not any(folder in file.parents for file in kept):
            removed += sum(p.lstat().st_size for p in folder.rglob("*") if p.is_file())
            shutil.rmtree(folder)
            continue
        held = shelf.find(store, source)
        for file in () if held is None or held.selection.outside is not None else held.files:
            removed += shelf.size_of(file) or 0
            file.unlink(missing_ok=True)
        if held is not None:
            forget(store, source.repository, held.commit)
    return removed


def forget(store: Path, repository: str, commit: str) -> None:
    """Make the record say what is there; a commit of which nothing is left is forgotten."""
    known = shelf.record(store, repository, commit)
    folder = shelf.commit_folder(store, repository, commit)
    if known is not None:
        there = {name: file for name, file in known.files.items() if (folder / name).exists()}
        selections = {
            key: chosen
            for key, chosen in known.selections.items()
            if chosen.outside is not None or all(name in there for name in chosen.files)
        }
        outside = {n: known.files[n] for c in selections.values() if c.outside for n in c.files if n in known.files}
        if there or selections:
            shelf.keep(store, shelf.Record(repository, commit, known.endpoint, {**outside, **there}, selections))
        else:
            (folder.parent / f"{commit}.json").unlink(missing_ok=True)
    for empty in sorted((p for p in folder.rglob("*") if p.is_dir()), reverse=True):
        if not any(empty.iterdir()):
            empty.rmdir()
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
