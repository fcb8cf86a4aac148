"""One pull: settle the commits, see what is here already, fetch the rest, record it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.clock import Clock
from orchestrator.disk import disk_error
from orchestrator.errors import NotOffered
from orchestrator.store_files import steadily
from orchestrator.weights import existing, shelf
from orchestrator.weights.choosing import NoChoice, Source, choose
from orchestrator.weights.fetching import Fetcher, Pace, connections, patiently
from orchestrator.weights.hub import Hub, HubFile
from orchestrator.weights.meter import Meter
from orchestrator.weights.request import FileView, PartView
from orchestrator.weights.resuming import Target
from orchestrator.weights.shelf import PARTIAL, Record, Selection, StoredFile


@dataclass(frozen=True, slots=True)
class Part:
    """A variant or drafter to pull: what to call it, and where it comes from."""

    what: str
    source: Source


@dataclass(frozen=True, slots=True)
class Step:
    """One file and how it gets here: `here`, `cache`, `store`, `fetch`. `other` is the file to link to."""

    file: HubFile
    state: str
    partial: int = 0
    other: Path | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """A part with its commit and files. `outside` is set when a cache on another file system has all of it."""

    part: Part
    commit: str
    asked: str
    record: Record
    steps: tuple[Step, ...]
    outside: Path | None = None

    @property
    def total(self) -> int:
        """Bytes of all files."""
        return sum(step.file.size for step in self.steps)

    @property
    def missing(self) -> int:
        """Bytes that have to come over the network and onto the disk."""
        return sum(step.file.size - step.partial for step in self.steps if step.state == "fetch")

    def view(self, store: Path) -> PartView:
        """For people and programs."""
        source = self.part.source
        folder = self.outside or shelf.commit_folder(store, source.repository, self.commit)
        files = tuple(FileView(s.file.path, s.file.size, s.state, s.partial) for s in self.steps)
        return PartView(self.part.what, source.repository, self.asked, self.commit, str(folder), files)

    def document(self, store: Path) -> dict[str, object]:
        """What a pull's job says came of it."""
        view = self.view(store)
        return {
            "what": view.what,
            "repository": view.repository,
            "commit": view.commit,
            "folder": view.folder,
            "bytes": self.total,
            "files": [file.path for file in view.files],
        }


class Puller:
    """Pulls into one store from one hub. `cache` is an existing Hugging Face cache."""

    def __init__(self, store: Path, hub: Hub, cache: Path, *, pace: Pace, clock: Clock, boot: str) -> None:
        self._store = store
        self._hub = hub
        self._cache = cache
        self._pace = pace
        self._clock = clock
        self._boot = boot

    async def settle(self, part: Part, revision: str | None, meter: Meter) -> Settled:
        """What a part is made of, and what of it is here. `revision` None keeps to the commit that was settled
        before, and does not ask the hub when everything is here.

        Raises what `Hub.snapshot` raises, and `NotOffered` when the repository has no such weights.
        """
        source = part.source
        if revision is None:
            held = await asyncio.to_thread(shelf.find, self._store, source)
            if held is not None and all(held.record.files[name].ok for name in held.selection.files):
                return _all_here(part, held)
        pinned = await asyncio.to_thread(shelf.pinned, self._store, source)
        asked = revision or source.revision
        wanted = asked if revision is not None else pinned or asked
        meter.begin(f"{part.what}: asking the hub")
        snapshot = await patiently(lambda: self._hub.snapshot(source.repository, wanted), self._pace, meter)
        known = await asyncio.to_thread(shelf.record, self._store, source.repository, snapshot.commit)
        record = known or Record(source.repository, snapshot.commit, await self._hub.endpoint())
        by_path = {file.path: file for file in snapshot.files}
        try:
            names = choose(by_path, source.wanted)
        except NoChoice as error:
            raise _no_choice(error, part, snapshot.commit) from error
        files = tuple(by_path[name] for name in names)
        steps, outside = await asyncio.to_thread(self._look, record, files)
        return Settled(part, snapshot.commit, asked, record, steps, outside)

    def _look(self, record: Record, files: tuple[HubFile, ...]) -> tuple[tuple[Step, ...], Path | None]:
        """How each file gets here. Blocking."""
        folder = shelf.commit_folder(self._store, record.repository, record.commit)
        near = existing.same_file_system(self._cache, _nearest(self._store))
        cached = existing.look(self._cache, record.repository, record.commit, files)
        siblings = list(shelf.records(shelf.repository_folder(self._store, record.repository)))
        steps = []
        for file in files:
            known = record.files.get(file.path)
            if known is not None and known.ok and _same(known, file) and shelf.size_of(folder / file.path) == file.size:
                steps.append(Step(file, "here"))
            elif known is None and shelf.size_of(folder / file.path) == file.size:
                steps.append(Step(file, "store", other=folder / file.path))  # it came, and the record did not
            elif (other := self._sibling(siblings, file)) is not None:
                steps.append(Step(file, "store", other=other))
            elif near and file.path in cached:
                steps.append(Step(file, "cache", other=cached[file.path].blob))
            else:
                place = folder / file.path
                there = shelf.size_of(place.with_name(place.name + PARTIAL)) or 0
                steps.append(Step(file, "fetch", partial=min(there, file.size)))
        lacking = [step for step in steps if step.state == "fetch"]
        if lacking and not near and all(f.path in cached and cached[f.path].inside for f in files):
            root = existing.repository_of(self._cache, record.repository).resolve()
            return tuple(Step(f, "cache", other=cached[f.path].blob) for f in files), root
        return tuple(steps), None

    def _sibling(self, siblings: list[Record], file: HubFile) -> Path | None:
        """The same file under another commit or name of this store."""
        for record in siblings:
            for name, known in record.files.items():
                place = shelf.commit_folder(self._store, record.repository, record.commit) / name
                if known.ok and file.sha256 == known.sha256 and shelf.size_of(place) == file.size:
                    return place
        return None

    async def carry_out(self, settled: Settled, meter: Meter) -> Settled:
        """Bring everything here, record it, and settle the commit. Files that are whole stay whatever happens."""
        source, record = settled.part.source, settled.record
        await self._keep_to(settled)
        folder = shelf.commit_folder(self._store, source.repository, settled.commit)
        count = len(settled.steps)
        async with connections(self._pace) as session:
            fetcher = Fetcher(self._hub, session, self._pace, meter, self._boot)
            for number, step in enumerate(settled.steps, 1):
                meter.begin(f"{settled.part.what}: {step.file.path} (file {number} of {count})")
                if step.state == "here":
                    meter.at(step.file.size)
                    continue
                record = await self._one(
                    fetcher, record, step, folder / step.file.path, meter=meter, outside=settled.outside
                )
        names = tuple(step.file.path for step in settled.steps)
        outside = None if settled.outside is None else str(settled.outside)
        selections = {**record.selections, source.wanted.key: Selection(names, outside)}
        record = replace(record, selections=selections)
        await self._keep(record)
        await self._pin(source, settled)
        return replace(settled, record=record)

    async def _keep_to(self, settled: Settled) -> None:
        """Settle the commit before the first byte, unless an older one is in use: a pull that is cut off is gone
        on with at the same commit, whatever has become of the branch meanwhile."""
        asked = replace(settled.part.source, revision=settled.asked)
        if await asyncio.to_thread(shelf.pinned, self._store, asked) is None:
            await self._pin(asked, settled)

    async def _pin(self, source: Source, settled: Settled) -> None:
        def pin() -> None:
            shelf.pin(self._store, source, settled.commit, asked=settled.asked, at=self._clock.wall())

        try:
            await steadily(pin)
        except OSError as error:
            folder = shelf.repository_folder(self._store, source.repository)
            raise disk_error(error, folder, "the record of its commit") from error

    async def _one(
        self, fetcher: Fetcher, record: Record, step: Step, to: Path, *, meter: Meter, outside: Path | None
    ) -> Record:
        file, origin = step.file, step.state
        sha256: str | None = None
        if step.other is not None:
            meter.waiting(f"checking the copy in {'the cache' if origin == 'cache' else 'the store'}")
            sha256 = await _digested(file, step.other, meter.add)
            if sha256 is not None and outside is None and not await self._link(step.other, to):
                sha256 = None
            if sha256 is None:
                meter.at(0)
        if sha256 is None:
            origin = "hub"
            target = Target(record.repository, record.commit, file.path, file.size, file.sha256, file.git_sha1)
            sha256 = await fetcher.fetch(target, to)
        seen = StoredFile(file.size, sha256, origin, self._clock.wall())
        record = shelf.noted(record, file.path, seen)
        await self._keep(record)
        return record

    async def _link(self, real: Path, to: Path) -> bool:
        try:
            return await steadily(existing.link, real, to)
        except OSError as error:
            raise disk_error(error, to, to.name) from error

    async def _keep(self, record: Record) -> None:
        try:
            await steadily(shelf.keep, self._store, record)
        except OSError as error:
            folder = shelf.repository_folder(self._store, record.repository)
            raise disk_error(error, folder, "the record of what is there") from error


async def _digested(file: HubFile, place: Path, count: Callable[[int], None]) -> str | None:
    """`existing.digest` in a thread, counted on the loop; a cancelled caller ends it."""
    loop = asyncio.get_running_loop()
    ended = False

    def go_on(piece: int) -> None:
        if ended:
            raise OSError("no longer wanted")
        loop.call_soon_threadsafe(count, piece)

    try:
        return await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(existing.digest, file, place, go_on)))
    finally:
        ended = True


def _all_here(part: Part, held: shelf.Held) -> Settled:
    steps = []
    for name in held.selection.files:
        known = held.record.files[name]
        steps.append(Step(HubFile(name, known.size, known.sha256, None), "here"))
    outside = None if held.selection.outside is None else Path(held.selection.outside)
    return Settled(part, held.commit, held.commit, held.record, tuple(steps), outside)


def _same(known: StoredFile, file: HubFile) -> bool:
    """Whether the record speaks of this file: a commit's files never change, so its size tells for small ones."""
    return known.size == file.size and file.sha256 in (None, known.sha256)


def _nearest(folder: Path) -> Path:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def _no_choice(error: NoChoice, part: Part, commit: str) -> NotOffered:
    repository = part.source.repository
    listed = f"; there are {', '.join(error.candidates)}" if error.candidates else ""
    hint = f"name one: `outrider model pull {repository} --file FILE --name NAME`" if error.candidates else None
    return NotOffered(
        f"{repository} at {commit[:12]}: {error}{listed}",
        hint=hint or "name another repository or revision",
        evidence={"repository": repository, "commit": commit, "candidates": list(error.candidates)},
    )
