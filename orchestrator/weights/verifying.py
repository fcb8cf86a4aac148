"""Reading weights again, all of them, and comparing with what was recorded. Blocking."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from orchestrator import gguf_file
from orchestrator.errors import ModelFileError
from orchestrator.file_facts import stored_at
from orchestrator.models import Drafter, Format, ModelEntry, Variant
from orchestrator.reading import safetensors_file
from orchestrator.store_files import sidecar
from orchestrator.weights import existing, shelf
from orchestrator.weights.choosing import Source, source_of, things
from orchestrator.weights.hub import HubFile
from orchestrator.weights.request import CheckedFile

GoOn = Callable[[int], None]
"""Told the bytes that were read; may raise OSError to end it."""


def verify(entry: ModelEntry, store: Path, now: float, go_on: GoOn) -> list[CheckedFile]:
    """Every file of a model that is here. What was pulled is noted as checked `now` (Unix seconds)."""
    found: list[CheckedFile] = []
    for thing in things(entry):
        source = source_of(thing)
        if source is not None and shelf.pinned(store, source) is not None:
            found += _pulled(source, store, now, go_on)
        else:
            found += _placed(thing, store, go_on)
    return list({file.path: file for file in found}.values())


def size(entry: ModelEntry, store: Path) -> int:
    """Bytes that `verify` reads."""
    total = 0
    for thing in things(entry):
        source = source_of(thing)
        held = None if source is None else shelf.find(store, source)
        if held is not None:
            total += held.size
        else:
            total += sum((shelf.size_of(file) or 0) for file in _files(thing, store))
    return total


def _pulled(source: Source, store: Path, now: float, go_on: GoOn) -> Iterator[CheckedFile]:
    commit = shelf.pinned(store, source)
    known = None if commit is None else shelf.record(store, source.repository, commit)
    chosen = None if known is None else known.selections.get(source.wanted.key)
    if known is None or chosen is None:
        return  # nothing of it was pulled
    inside = shelf.commit_folder(store, source.repository, known.commit)
    folder = inside if chosen.outside is None else Path(chosen.outside) / "snapshots" / known.commit
    for name in chosen.files:
        have, place = known.files.get(name), folder / name
        there = shelf.size_of(place)
        if have is None or there is None:
            yield CheckedFile(str(place), there, False, "is missing")
            continue
        right = there == have.size
        if right:
            right = existing.digest(HubFile(name, have.size, have.sha256, None), place, go_on) is not None
        known = shelf.noted(known, name, replace(have, checked_at=now, ok=right))
        detail = "as it was pulled" if right else "differs from what was pulled"
        yield CheckedFile(str(place), there, right, detail)
    shelf.keep(store, known)


def _files(thing: Variant | Drafter, store: Path) -> list[Path]:
    place = Path(stored_at(str(store), thing))
    if place.is_dir():
        return sorted(p for p in place.iterdir() if p.name.endswith(".safetensors") and p.is_file())
    return [place] if place.exists() or thing.path is not None else []


def _placed(thing: Variant | Drafter, store: Path, go_on: GoOn) -> Iterator[CheckedFile]:
    """A file that was added, or put there: by its sidecar, else by its own header."""
    for file in _files(thing, store):
        there = shelf.size_of(file)
        if there is None:
            yield CheckedFile(str(file), None, False, "is missing")
            continue
        have = sidecar(file)
        if have is not None:
            right = existing.digest(HubFile(file.name, have.size, have.sha256, None), file, go_on) is not None
            yield CheckedFile(str(file), there, right, "as it was added" if right else "differs from what was added")
        else:
            try:
                if thing.format is Format.GGUF:
                    gguf_file.read(file)
                else:
                    safetensors_file.read(str(file))
            except ModelFileError as error:
                yield CheckedFile(str(file), there, False, error.detail)
            else:
                yield CheckedFile(str(file), there, None, "whole by its header; no digest was recorded")
