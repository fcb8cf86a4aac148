"""Looks at the files that a model names, and remembers what it saw until they change. Blocking."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator
from dataclasses import replace
from pathlib import Path

from orchestrator import gguf_file
from orchestrator.errors import ModelFileError, WeightsMissing
from orchestrator.file_facts import FileFacts, FileProblem, location, stored_at
from orchestrator.models import Drafter, Format, ModelEntry, Variant
from orchestrator.plan import Plan
from orchestrator.reading import folder
from orchestrator.weights import shelf
from orchestrator.weights.choosing import source_of

MOST_REMEMBERED = 1024
_READ = (".safetensors", ".json", ".jinja")
"""Ends of the names of files that a folder's facts come from."""


class FileReader:
    """Reads model files once: facts are kept by path, size, inode and modification time."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, FileFacts | FileProblem] = {}

    def inspect(self, entry: ModelEntry, store: Path) -> dict[str, FileFacts | FileProblem]:
        """What is known of the entry's files, for `planner.plan`. Blocking: call it off the event loop.

        Weights of a repository that are not here yet are absent from the answer (they can be
        fetched); a `path` that is not there is a problem.
        """
        found: dict[str, FileFacts | FileProblem] = {}
        things: list[Variant | Drafter] = [*entry.variants, *entry.drafters]
        for thing in things:
            seen = self._look(thing, store)
            if seen is not None:
                found[location(thing)] = seen
        return found

    def _look(self, thing: Variant | Drafter, store: Path) -> FileFacts | FileProblem | None:
        source = source_of(thing)
        held = None if source is None else shelf.find(store, source)
        if held is not None:
            return self._pulled(thing, held)
        path = stored_at(str(store), thing)
        try:
            info = os.stat(path)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            if thing.path is None and isinstance(error, FileNotFoundError):
                return None
            info = None
        if thing.format is Format.SAFETENSORS:
            return self._folder(path) if info is not None else FileProblem(path, f"{path} does not exist")
        return self._gguf(path, info)

    def _pulled(self, thing: Variant | Drafter, held: shelf.Held) -> FileFacts | FileProblem:
        """Weights that were pulled: the parts of a split GGUF count together."""
        root = None if held.selection.outside is None else str(held.root)
        if thing.format is Format.SAFETENSORS:
            found = self._folder(str(held.folder), root)
            return found if isinstance(found, FileProblem) else replace(found, path=str(held.folder), root=root)
        parts = []
        for file in held.files:
            try:
                info = file.stat()
            except OSError:  # gone since it was found
                info = None
            part = self._gguf(str(file), info)
            if isinstance(part, FileProblem):
                hint = f"`outrider model verify` reads all of it again; {part.hint or 'pull it again'}"
                return replace(part, hint=hint)
            parts.append(part)
        return replace(
            parts[0],
            path=str(held.files[0]),
            size=sum(part.size for part in parts),
            tensor_bytes=sum(part.tensor_bytes for part in parts),
            root=root,
        )

    def _gguf(self, path: str, info: os.stat_result | None) -> FileFacts | FileProblem:
        key = (path, 0, 0, 0) if info is None else (path, info.st_size, info.st_ino, info.st_mtime_ns)
        known = self._seen.get(key) if info is not None else None
        return known or self._remembered(key, _read(path))

    def _folder(self, path: str, root: str | None = None) -> FileFacts | FileProblem:
        """A folder of safetensors; `root` is what an engine is given of it, where that is more than the folder."""
        try:
            key = (path, root, *_signature(path))
        except OSError as error:
            return FileProblem(path, f"{path} cannot be read: {error.strerror or error}")
        known = self._seen.get(key)
        if known is None:
            try:
                known = folder.read(path, root)
            except ModelFileError as error:
                known = FileProblem(path, error.detail, error.hint)
            self._remembered(key, known)
        return known

    def _remembered(self, key: Hashable, found: FileFacts | FileProblem) -> FileFacts | FileProblem:
        if len(self._seen) >= MOST_REMEMBERED:
            self._seen.clear()
        self._seen[key] = found
        return found


def _read(path: str) -> FileFacts | FileProblem:
    try:
        return gguf_file.read(path)
    except ModelFileError as error:
        return FileProblem(path, error.detail, error.hint)


def _signature(path: str) -> Iterator[tuple[object, ...]]:
    """What changes when a folder's files do. Raises OSError; a file is no folder."""
    if not os.path.isdir(path):
        info = os.stat(path)
        yield (info.st_size, info.st_ino, info.st_mtime_ns)
        return
    with os.scandir(path) as entries:
        for entry in sorted(entries, key=lambda e: e.name):
            if entry.name.endswith(_READ):
                try:
                    info = entry.stat()
                except OSError:  # a link to nothing
                    info = entry.stat(follow_symlinks=False)
                yield (entry.name, info.st_size, info.st_ino, info.st_mtime_ns)


def check_mounted(plan: Plan) -> None:
    """Whether the files of a plan that was made before are still here. Blocking.

    Raises `WeightsMissing`, as one that may go away by itself: their disk may be mounted later.
    """
    for mount in plan.mounts:
        inside = [Path(a).relative_to(mount.target) for a in plan.argv if Path(a).is_relative_to(mount.target)]
        for path in (Path(mount.source, part) for part in (Path(), *inside)):
            if not os.path.lexists(path):  # where a link leads, only the container may find out
                error = WeightsMissing(
                    f"{path} is not there any more",
                    hint=f"`outrider start {plan.model} --pull` fetches what is missing, then starts",
                    evidence={"model": plan.model, "path": str(path)},
                )
                error.retryable = True
                raise error
