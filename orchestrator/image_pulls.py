"""Pulling images: one pull an image however many wait for it, as a job, with room looked for beforehand.

Tried again a few times, from the next place where one fails; a Podman service that was killed in the middle
is swept up after. What cannot be healed by trying is said at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from containers import pull_leftovers, registry
from containers.errors import (
    ContainerError,
    DigestMismatch,
    OutriderError,
    PodmanTimeout,
    PodmanUnreachable,
    RateLimited,
    SourceFailed,
)
from containers.podman import Podman
from containers.pulling import PullProgress
from containers.references import Reference
from containers.spec import ImageInfo, Storage
from orchestrator import disk
from orchestrator.clock import Clock
from orchestrator.disk import Load, OnTheWay
from orchestrator.errors import DatabaseFailed, Refused
from orchestrator.events import Journal
from orchestrator.image_sources import Found, ImageSources, Source
from orchestrator.jobs import Handle, Jobs
from orchestrator.timing import Timing
from orchestrator.views import JobView

KIND = "image_pull"
TRIES = 4
LONGEST_WAIT = 60.0
"""Seconds that a registry may ask us to wait within one pull; for longer, whoever asked tries again."""
_AGAIN = (SourceFailed, DigestMismatch, RateLimited, PodmanUnreachable, PodmanTimeout)
log = structlog.get_logger("images")


class ArchMismatch(Refused):
    """The image is for another processor than this host has."""

    code = "arch_mismatch"


class PullCancelled(Refused):
    """Somebody cancelled the pull that a start was waiting for."""

    code = "cancelled"


@dataclass(slots=True)
class Flight:
    """One pull under way, and who waits for it."""

    reference: Reference
    job: str
    done: asyncio.Future[ImageInfo]
    asked: bool
    """Whether a person asked for it: then it goes on when nobody waits."""
    waiting: int = 0
    watchers: list[Callable[[PullProgress], None]] = field(default_factory=list)


class ImagePulls:
    """The pulls of this daemon."""

    def __init__(
        self,
        *,
        podman: Podman,
        sources: ImageSources,
        jobs: Jobs,
        journal: Journal,
        clock: Clock,
        timing: Timing,
        low_water: Callable[[], float],
        may_pull: Callable[[], None],
        known_bytes: Callable[[Reference], int | None],
        pulled: Callable[[str, str], Awaitable[None]],
    ) -> None:
        """`may_pull` raises while nothing may be pulled; `known_bytes` is what the catalogue says of an image's size
        unpacked, for a registry that does not tell; `pulled` takes note of an image's id and the name it was
        pulled by, so that housekeeping knows it for ours."""
        self._podman = podman
        self._sources = sources
        self._jobs = jobs
        self._journal = journal
        self._clock = clock
        self._timing = timing
        self._low_water = low_water
        self._may_pull = may_pull
        self._known_bytes = known_bytes
        self._pulled = pulled
        self._flights: dict[str, Flight] = {}
        self.on_the_way = OnTheWay()
        """What this daemon's pulls, of images and of weights, are bringing to the disks."""

    def start(self, reference: Reference, *, by: str) -> JobView:
        """Begin a pull that a person asked for, or join the one under way; its job. Raises `DiskFull`, `Refused`."""
        return self._jobs.get(self._flight(reference, by=by, asked=True).job)

    async def wait(
        self,
        reference: Reference,
        *,
        by: str,
        watch: Callable[[PullProgress], None] = lambda _: None,
    ) -> ImageInfo:
        """Pull for somebody who waits; the last of them to leave ends a pull that no person asked for.

        Raises what the pull raises.
        """
        flight = self._flight(reference, by=by, asked=False)
        flight.waiting += 1
        flight.watchers.append(watch)
        try:
            return await asyncio.shield(flight.done)
        except asyncio.CancelledError:
            if flight.waiting == 1 and not flight.asked and not flight.done.done():
                self._leave(flight)  # who asks from now on is not told that it was cancelled
                await self._jobs.cancel(flight.job)
            raise
        finally:
            flight.waiting -= 1
            flight.watchers.remove(watch)

    async def loads(self, reference: Reference) -> Sequence[Load]:
        """What a pull would put onto disks, asked of the registry; none for one that is under way or nobody knows.

        Raises what keeps Podman from saying where its folders are.
        """
        if reference.exact in self._flights:
            return ()
        storage = await self._podman.storage()
        compressed: int | None = None
        with suppress(OutriderError, TimeoutError):
            async with asyncio.timeout(self._timing.hub_call):
                offer = (await self._sources.find(reference)).offer
                compressed = None if offer is None else offer.compressed
        found = await asyncio.to_thread(self._loads, reference, compressed, storage)
        return [load for load in found if load.size]

    def under_way(self) -> Sequence[Reference]:
        """The images that are being pulled."""
        return [f.reference for f in self._flights.values()]

    async def sweep(self) -> Sequence[pull_leftovers.Leftover]:
        """Remove what pulls of killed Podman services left in the temporary folder. Raises `ContainerError`."""
        folder = Path((await self._podman.storage()).temporary)
        gone = await asyncio.to_thread(pull_leftovers.sweep, folder, now=self._clock.wall())
        self._swept(gone)
        return gone

    # inside

    def _leave(self, flight: Flight) -> None:
        if self._flights.get(flight.reference.exact) is flight:
            del self._flights[flight.reference.exact]

    def _flight(self, reference: Reference, *, by: str, asked: bool) -> Flight:
        if reference.local:
            raise Refused(
                f"{reference} is built on this machine; no registry has it",
                hint="`outrider image build cpu` builds the embedded engine",
                evidence={"image": str(reference)},
            )
        known = self._flights.get(reference.exact)
        if known is not None:
            known.asked = known.asked or asked
            return known
        self._may_pull()
        done: asyncio.Future[ImageInfo] = asyncio.get_running_loop().create_future()
        done.add_done_callback(lambda f: f.cancelled() or f.exception())  # looked at, also where nobody waits

        async def work(handle: Handle) -> str:
            try:
                info = await self._pull(reference, handle, flight)
            except asyncio.CancelledError:
                done.set_exception(self._why_cancelled(reference))
                self._emit("image_pull_cancelled", f"the pull of {reference} was cancelled", image=str(reference))
                raise
            except Exception as error:
                done.set_exception(error)
                code = error.code if isinstance(error, OutriderError) else "internal"
                self._emit("image_pull_failed", str(error), image=str(reference), error=code)
                raise
            finally:
                self._leave(flight)
            done.set_result(info)
            return f"{reference} is here"

        # the work begins when this coroutine next waits, so the flight is known before
        job = self._jobs.start(KIND, str(reference), work)
        flight = self._flights[reference.exact] = Flight(reference, job.id, done, asked)
        self._emit("image_pull_started", f"{by} pulls {reference}", image=str(reference), by=by, job=job.id)
        return flight

    def _why_cancelled(self, reference: Reference) -> OutriderError:
        """The low disk that a pull was stopped for, else that somebody cancelled it."""
        try:
            self._may_pull()
        except OutriderError as error:
            return error
        hint = f"`outrider image pull {reference}` pulls it again"
        return PullCancelled(f"the pull of {reference} was cancelled", hint=hint)

    async def _pull(self, reference: Reference, handle: Handle, flight: Flight) -> ImageInfo:
        started = self._clock.now()
        handle.progress(f"asking {reference.registry}")
        storage = await self._podman.storage()
        # room that pulls of a former Podman service still take
        gone = await asyncio.to_thread(pull_leftovers.sweep, Path(storage.temporary), now=self._clock.wall())
        self._swept(gone)
        tried = 0
        while True:
            tried += 1
            before = await asyncio.to_thread(pull_leftovers.entries, Path(storage.temporary))
            try:
                found = await self._sources.find(reference)
                compressed = None if found.offer is None else found.offer.compressed
                mine = await asyncio.to_thread(self._loads, found.sources[-1].reference, compressed, storage)
                with self.on_the_way.bring(mine, lambda: _left(self._jobs.get(handle.id))) as number:
                    besides = self.on_the_way.before(number)
                    await asyncio.to_thread(disk.check, mine, low_water=self._low_water(), besides=besides)
                    info = await self._from(found, reference, handle, flight)
            except _AGAIN as error:
                pause = self._pause(error, tried)
                if pause is None:
                    raise
                self._emit(
                    "image_pull_again",
                    f"{reference}: {error.detail}; tried again in {pause:.1f} s",
                    image=str(reference),
                    error=error.code,
                    tried=tried,
                )
                handle.progress(f"waiting {pause:.0f} s to try again: {error.code}")
                await asyncio.sleep(pause)
                await self._sweep_ours(storage, before)
                self._may_pull()
                continue
            break
        await self._check(info, reference)
        with suppress(DatabaseFailed):  # then it is not pruned, which is no reason to fail
            await self._pulled(info.id, reference.exact)
        seconds = self._clock.now() - started
        self._emit(
            "image_pulled",
            f"{reference} is here after {seconds:.1f} s",
            image=str(reference),
            id=info.id,
            digest=info.digest,
            bytes=info.size,
            seconds=round(seconds, 3),
        )
        return info

    def _pause(self, error: OutriderError, tried: int) -> float | None:
        """Seconds until the next try; None for no other."""
        if tried >= TRIES:
            return None
        asked = error.evidence.get("retry_after_s")
        if isinstance(asked, int | float):
            return float(asked) if asked <= LONGEST_WAIT else None
        return self._timing.pull_again * 2.0 ** (tried - 1)

    def _loads(self, reference: Reference, compressed: int | None, storage: Storage) -> Sequence[Load]:
        """What a pull puts onto disks. Blocking."""
        root, temporary = Path(storage.graph_root), Path(storage.temporary)
        if compressed is None:
            return (Load(root, self._known_bytes(reference) or 0, f"image {reference}"),)
        mine = [Load(root, disk.image_bytes(compressed), f"image {reference}")]
        if disk.look(root).device != disk.look(temporary).device:
            mine.append(Load(temporary, compressed, f"the compressed layers of {reference}"))
        return mine

    async def _from(self, found: Found, reference: Reference, handle: Handle, flight: Flight) -> ImageInfo:
        """Pull from the first place that gives it."""
        for host, error in found.passed:
            self._emit(
                "image_place_passed",
                f"{host} was passed over for {reference}: {error.detail}",
                image=str(reference),
                place=host,
                error=error.code,
            )
        *mirrors, itself = found.sources
        for source in mirrors:
            try:
                info = await self._one(source, found, handle, flight)
            except (SourceFailed, DigestMismatch, RateLimited) as error:
                self._emit(
                    "image_place_passed",
                    f"{source.place.host} was passed over for {reference}: {error.detail}",
                    image=str(reference),
                    place=source.place.host,
                    error=error.code,
                )
                continue
            return await self._renamed(info, reference)
        return await self._one(itself, found, handle, flight)

    async def _one(self, source: Source, found: Found, handle: Handle, flight: Flight) -> ImageInfo:
        sizes = {} if source.offer is None else dict(source.offer.layers)
        where = "" if not source.mirror else f" from {source.place.host}"

        def report(progress: PullProgress) -> None:
            unpacking = progress.total is not None and progress.done >= progress.total
            doing = "unpacking" if unpacking else "pulling"
            layers = f"{progress.layers_done} of {progress.layers} layers"
            handle.progress(f"{doing}{where}, {layers}", progress.done, progress.total)
            for watcher in tuple(flight.watchers):
                watcher(progress)

        return await self._podman.pull(source.reference, logins=found.logins, sizes=sizes, report=report)

    async def _renamed(self, info: ImageInfo, reference: Reference) -> ImageInfo:
        """An image from a mirror under its real name, so that nobody else needs to know where it came from."""
        tag = reference.tag or f"sha256-{(reference.digest or '')[7:19]}"
        await self._podman.tag(info.id, reference.name, tag)
        return await self._podman.image(info.id) or info

    async def _check(self, info: ImageInfo, reference: Reference) -> None:
        """Podman takes a single image of any architecture without a word."""
        mine = registry.architecture()
        if info.architecture in (None, mine):
            return
        with suppress(ContainerError):
            await self._podman.remove_image(reference.exact)
        raise ArchMismatch(
            f"{reference} is for {info.architecture}, and this host is {mine}; it was removed again",
            hint="another tag may have one for this host",
            evidence={"image": str(reference), "architecture": info.architecture, "host": mine},
        )

    async def _sweep_ours(self, storage: Storage, before: frozenset[str]) -> None:
        """Take what the failed try left: its Podman service may have been killed in it."""
        folder = Path(storage.temporary)
        new = await asyncio.to_thread(pull_leftovers.entries, folder) - before
        if new:
            gone = await asyncio.to_thread(pull_leftovers.sweep, folder, now=self._clock.wall(), rested=0, names=new)
            self._swept(gone)

    def _swept(self, gone: Sequence[pull_leftovers.Leftover]) -> None:
        if gone:
            size = sum(g.size for g in gone)
            self._emit(
                "image_leftovers_swept",
                f"removed {size} bytes that pulls of a killed Podman service left",
                paths=[str(g.path) for g in gone],
                bytes=size,
            )

    def _emit(self, code: str, text: str, **evidence: object) -> None:
        self._journal.emit("images", code, text, evidence=evidence)


def _left(job: JobView) -> float:
    """The part of a pull that is still to come."""
    return 1.0 - (job.done_bytes or 0) / job.total_bytes if job.total_bytes else 1.0
