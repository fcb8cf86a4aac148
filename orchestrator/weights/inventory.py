"""What lies in the store, which models use it, and what nobody does. Every function blocks.

For housekeeping, and for removing a model: what another model uses stays.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import Conflict, Refused
from orchestrator.file_facts import stored_at
from orchestrator.models import ModelEntry
from orchestrator.weights import shelf
from orchestrator.weights.choosing import Source, source_of, things
from orchestrator.weights.shelf import HUB, PARTIAL, Held

INCOMING = ".incoming-"
_NOTE = PARTIAL + ".json"


@dataclass(frozen=True, slots=True)
class Item:
    """Something in the store. `kind` is `weights` (some model's, or `models` empty: nobody's), `partial` (a download
    or copy that did not end), `leftover` (a folder of work that was cut off). `size` is bytes; `freed` those
    that removing it gives back (a file with another name elsewhere gives none); `changed` Unix seconds."""

    path: Path
    kind: str
    size: int
    freed: int
    changed: float
    models: tuple[str, ...] = ()
    repository: str | None = None
    commit: str | None = None


def inventory(store: Path, entries: Iterable[ModelEntry]) -> tuple[Item, ...]:
    """Everything in the store: whose it is, how large, and how old."""
    known = tuple(entries)
    users = _users(store, known)
    found: list[Item] = []
    for folder in shelf.repositories(store):
        for commit in sorted(p for p in folder.iterdir() if p.is_dir()):
            found += _commit(store, commit, users)
    for folder in sorted(store.iterdir()) if store.is_dir() else ():
        if folder.name.startswith(INCOMING):
            found.append(_item(folder, "leftover"))
        elif folder.is_dir() and not folder.is_symlink() and folder.name != HUB:
            found += _local(store, folder, known)
    return tuple(found)


def remove(store: Path, item: Item) -> None:
    """Remove one item of the inventory. Raises `Refused` for one that a model uses, or that is not in the store."""
    if item.models and item.kind == "weights":
        raise Refused(f"{item.path} is used by {', '.join(item.models)}", hint="`outrider model rm` removes a model")
    if store not in item.path.parents:
        raise Refused(f"{item.path} is not in the store {store}")
    if item.path.is_dir() and not item.path.is_symlink():
        shutil.rmtree(item.path)
    else:
        item.path.unlink(missing_ok=True)
        for beside in (item.path.with_name(item.path.name + ".json"),):
            beside.unlink(missing_ok=True)
    if item.repository is not None and item.commit is not None:
        forget(store, item.repository, item.commit)


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


def _commit(store: Path, folder: Path, users: dict[Path, set[str]]) -> Iterator[Item]:
    """The files of one commit: each that is whole, each on its way."""
    commit = folder.name
    known = next((r for r in shelf.records(folder.parent) if r.commit == commit), None)
    repository = folder.parent.name.replace("--", "/", 1) if known is None else known.repository
    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
        if file.name.endswith(_NOTE):
            continue
        kind = "partial" if file.name.endswith(PARTIAL) else "weights"
        models = tuple(sorted(users.get(file, ())))
        yield _item(file, kind, models=models, repository=repository, commit=commit)


def _local(store: Path, folder: Path, entries: Sequence[ModelEntry]) -> Iterator[Item]:
    """A folder of `model add`: its files by the models that name them."""
    named: dict[Path, set[str]] = {}
    for entry in entries:
        for thing in things(entry):
            if thing.path is not None:
                named.setdefault(Path(stored_at(str(store), thing)), set()).add(entry.name)
    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
        if file.name.endswith(_NOTE) or (file.suffix == ".json" and file.with_suffix("").is_file()):
            continue
        kind = "partial" if file.name.endswith(PARTIAL) else "weights"
        models = {m for place, ms in named.items() for m in ms if place == file or place in file.parents}
        yield _item(file, kind, models=tuple(sorted(models)))


def _item(
    path: Path, kind: str, *, models: tuple[str, ...] = (), repository: str | None = None, commit: str | None = None
) -> Item:
    files = [p for p in path.rglob("*") if p.is_file()] if path.is_dir() else [path]
    infos = [p.lstat() for p in files]
    return Item(
        path=path,
        kind=kind,
        size=sum(i.st_size for i in infos),
        freed=sum(i.st_size for i in infos if i.st_nlink == 1),
        changed=max((i.st_mtime for i in infos), default=path.lstat().st_mtime),
        models=models,
        repository=repository,
        commit=commit,
    )


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
