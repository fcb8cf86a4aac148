"""Where fetched weights lie in the store, and what is recorded of them. Every function blocks.

    <store>/hub/<org>--<repo>/
        pins.json            the revision that a definition names -> the commit that is taken for it
        <commit>.json        what is known of that commit's files here: sizes, digests, which belong together
        <commit>/...         the files, under the repository's own names
        <commit>/x.partial   one on its way, with x.partial.json

A commit is stored once, however many models use it. A pin is moved by a person only. Records lie beside
the folder, not in it: the folder is what an engine sees.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestrator.store_files import write_text
from orchestrator.weights.choosing import Source

HUB = "hub"
PARTIAL = ".partial"
SCHEMA = 1
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file whose bytes were checked. `sha256` is that of its bytes; `origin` says where they came from:
    `hub`, `cache` (linked, or still in a Hugging Face cache), `store` (another commit here has the same)."""

    size: int
    sha256: str
    origin: str
    checked_at: float
    """Unix seconds of the last time that all of it was read."""
    ok: bool = True


@dataclass(frozen=True, slots=True)
class Selection:
    """Files that make one model. `outside` is the folder of a Hugging Face cache's repository where they
    have stayed; None where they are in the store."""

    files: tuple[str, ...]
    outside: str | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of one commit."""

    repository: str
    commit: str
    endpoint: str
    files: Mapping[str, StoredFile] = field(default_factory=dict)
    selections: Mapping[str, Selection] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Held:
    """Weights that are here whole: `files` are absolute, the first one first; `root` is what to mount."""

    commit: str
    root: Path
    folder: Path
    files: tuple[Path, ...]
    record: Record
    selection: Selection

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(self.record.files[name].size for name in self.selection.files)


def repository_folder(store: Path, repository: str) -> Path:
    """The folder of a repository in the store."""
    return store / HUB / repository.replace("/", "--")


def commit_folder(store: Path, repository: str, commit: str) -> Path:
    """The folder of one commit's files."""
    return repository_folder(store, repository) / commit


def pinned(store: Path, source: Source) -> str | None:
    """The commit that is taken for a source; None when none was settled yet."""
    if _COMMIT.fullmatch(source.revision):
        return source.revision
    pin = _pins(store, source.repository).get(source.revision)
    commit = pin.get("commit") if isinstance(pin, dict) else None
    return commit if isinstance(commit, str) and _COMMIT.fullmatch(commit) else None


def pin(store: Path, source: Source, commit: str, *, asked: str, at: float) -> None:
    """Settle the commit for a source: what `asked` was at that time."""
    if source.revision == commit:
        return
    pins = _pins(store, source.repository)
    pins[source.revision] = {"commit": commit, "asked": asked, "at": at}
    file = repository_folder(store, source.repository) / "pins.json"
    write_text(file, json.dumps(pins, indent=1, sort_keys=True) + "\n")


def _pins(store: Path, repository: str) -> dict[str, Any]:
    data = _json(repository_folder(store, repository) / "pins.json")
    return data if isinstance(data, dict) else {}


def record(store: Path, repository: str, commit: str) -> Record | None:
    """What is known of a commit; None when nothing is, or it cannot be read."""
    data = _json(repository_folder(store, repository) / f"{commit}.json")
    try:
        return Record(
            repository=str(data["repository"]),
            commit=commit,
            endpoint=str(data["endpoint"]),
            files={name: StoredFile(**value) for name, value in data["files"].items()},
            selections={
                key: Selection(tuple(value["files"]), value["outside"]) for key, value in data["selections"].items()
            },
        )
    except (KeyError, TypeError, AttributeError):
        return None


def keep(store: Path, known: Record) -> None:
    """Write a record, whole or not at all."""
    data = {"schema": SCHEMA, **asdict(known)}
    file = repository_folder(store, known.repository) / f"{known.commit}.json"
    write_text(file, json.dumps(data, indent=1) + "\n")


def noted(known: Record, name: str, file: StoredFile) -> Record:
    """The record with one file more, or seen anew."""
    return replace(known, files={**known.files, name: file})


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def find(store: Path, source: Source) -> Held | None:
    """The weights of a source, if all of its files were fetched and are there in their size."""
    commit = pinned(store, source)
    known = None if commit is None else record(store, source.repository, commit)
    selection = None if known is None else known.selections.get(source.wanted.key)
    if known is None or commit is None or selection is None or not selection.files:
        return None
    if selection.outside is None:
        root = folder = commit_folder(store, source.repository, commit)
    else:
        root = Path(selection.outside)
        folder = root / "snapshots" / commit
    for name in selection.files:
        have = known.files.get(name)
        if have is None or size_of(folder / name) != have.size:
            return None
    return Held(commit, root, folder, tuple(folder / name for name in selection.files), known, selection)


def size_of(file: Path) -> int | None:
    """A file's size; None when it is not there."""
    try:
        return file.stat().st_size
    except OSError:
        return None


def repositories(store: Path) -> Iterator[Path]:
    """The folders of all repositories in the store."""
    try:
        yield from sorted(p for p in (store / HUB).iterdir() if p.is_dir() and "--" in p.name)
    except OSError:
        return


def records(folder: Path) -> Iterator[Record]:
    """All records of one repository's folder."""
    for file in sorted(folder.glob("*.json")):
        if _COMMIT.fullmatch(file.stem):
            data = _json(file)
            name = data.get("repository") if isinstance(data, dict) else None
            known = record(folder.parent.parent, str(name), file.stem) if name else None
            if known is not None:
                yield known


def used_bytes(store: Path) -> int:
    """Bytes that the store's files have, each counted once, those that are on their way included."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for folder, _, names in os.walk(store):
        for name in names:
            try:
                info = os.lstat(os.path.join(folder, name))
            except OSError:
                continue
            if (info.st_dev, info.st_ino) not in seen:
                seen.add((info.st_dev, info.st_ino))
                total += info.st_size
    return total
