"""The daemon's verbs about fetched weights: pull, preview, verify, remove."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, replace
from typing import Any

from orchestrator import model_store
from orchestrator.config import Config
from orchestrator.context import Context
from orchestrator.disk import Load, look
from orchestrator.errors import DiskError, NotFound, OutriderError, Refused
from orchestrator.housekeeping.watch import may_pull
from orchestrator.issues import HOST
from orchestrator.jobs import Handle, Jobs
from orchestrator.models import Drafter, Format, ModelEntry, Variant
from orchestrator.planning import Planning, no_plan
from orchestrator.store_files import steadily
from orchestrator.telling.amounts import count
from orchestrator.views import JobView
from orchestrator.weights import defining, removal, room, shelf, token, verifying
from orchestrator.weights.choosing import Source, Wanted, source_of, things, wheel_of
from orchestrator.weights.existing import cache_folder
from orchestrator.weights.fetching import Pace
from orchestrator.weights.hub import Hub
from orchestrator.weights.meter import Meter, amount
from orchestrator.weights.pulling import Part, Puller, Settled
from orchestrator.weights.request import CheckedFile, PullPreview, PullRequest

TOKEN_SHARED = "token_readable"  # noqa: S105 - an issue's name
KIND = "model_pull"


class Weights:
    """What is fetched, into this daemon's store. One pull at a time: the line to the hub is one."""

    def __init__(
        self,
        context: Context,
        planning: Planning,
        jobs: Jobs,
        *,
        config: Callable[[], Config],
        boot: str,
        reload: Callable[[], Awaitable[object]],
        add: Callable[[Mapping[str, Any]], Awaitable[JobView]],
    ) -> None:
        self._c = context
        self._planning = planning
        self._jobs = jobs
        self._config = config
        self._boot = boot
        self._reload = reload
        self._add = add
        self._one = asyncio.Lock()
        self._coming: frozenset[str] = frozenset()
        """Repositories of the pull that has the lock."""
        self._pace = Pace.of(context.timing)

    # pull

    async def pull(self, asked: Mapping[str, Any]) -> JobView:
        """Start pulling. Raises `UsageError`, `NotFound`, `DiskFull` while the disk is low."""
        request = PullRequest.read(asked)
        may_pull(self._c.issues, KIND)
        wheel = await self._wheel(request)
        if wheel is not None:
            return await self._add(wheel)
        if request.name is not None:
            await asyncio.to_thread(model_store.name_is_free, request.name, self._c.paths.models_d)

        async def work(handle: Handle) -> str:
            try:
                return await self._pull(request, handle)
            except OutriderError as error:
                text = f"pulling {request.subject}: {error.detail}"
                self._c.journal.emit("weights", error.code, text, deployment=request.subject, evidence=error.evidence)
                raise

        return self._jobs.start(KIND, request.subject, work)

    def _entry(self, name: str) -> ModelEntry:
        """A known model. Raises `NotFound`; for what may be a repository, with how to pull that."""
        try:
            return self._planning.find(name)
        except NotFound as error:
            if "/" in name:
                error.hint = f"for a repository of the hub: `outrider model pull {name} --name NAME` (and --file FILE)"
            raise

    async def _wheel(self, request: PullRequest) -> Mapping[str, Any] | None:
        """What to add instead, for a model that comes in a wheel; None for one from the hub."""
        if request.model is None:
            return None
        entry = self._entry(request.model)
        wheels = [w for v in entry.variants if request.variant in (None, v.name) and (w := wheel_of(v)) is not None]
        if not wheels or any(source_of(thing) is not None for thing in things(entry)):
            return None
        return {"name": entry.name, "aliases": list(entry.aliases), "wheel": wheels[0]}

    async def _pull(self, request: PullRequest, handle: Handle) -> str:
        meter = Meter(self._c.clock.now)
        async with self._reporting(meter, handle):
            if self._one.locked():
                meter.waiting("waiting for another pull to end")
            async with self._one:
                self._coming = frozenset()
                puller = await self._puller()
                settled, image = await self._settled(request, puller, meter)
                missing = sum(part.missing for part in settled)
                meter.total = sum(part.total for part in settled)

                def left() -> float:
                    return (meter.total - meter.done) / missing if missing else 0.0

                coming = self._c.images.on_the_way
                with coming.bring([Load(self._c.paths.store, missing, request.subject)], left) as number:
                    besides = coming.before(number)
                    await steadily(self._room, missing, request.subject, image, besides)
                    before = await asyncio.to_thread(self._pins, settled)
                    self._coming = frozenset(part.part.source.repository for part in settled)
                    done = [await puller.carry_out(part, meter) for part in settled]
                meter.begin("recording")
                if request.name is not None:
                    await steadily(self._define, request, done[0])
                await self._reload()
        self._tell(request, done, before, missing)
        handle.result(
            {
                "parts": [part.document(self._c.paths.store) for part in done],
                "fetched_bytes": missing,
                "total_bytes": sum(part.total for part in done),
            }
        )
        what = ", ".join(f"{part.part.what} at {part.commit[:12]}" for part in done)
        fetched = f"{amount(missing)} fetched" if missing else "nothing had to be fetched"
        return f"{what}: {fetched}; `outrider start {request.subject}` starts it"

    @asynccontextmanager
    async def _reporting(self, meter: Meter, handle: Handle) -> AsyncIterator[None]:
        """A line about the pull at each beat, also while nothing comes."""

        async def report() -> None:
            while True:
                handle.progress(meter.line(), meter.done, meter.total or None)
                await asyncio.sleep(self._c.timing.pull_report)

        task = asyncio.create_task(report())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])  # raises no cancellation but the caller's own
            handle.progress(meter.line(), meter.done, meter.total or None)

    async def _puller(self) -> Puller:
        config = self._config()
        hub = Hub(config.hub.endpoint, await self._token(), deadline=self._pace.call)
        cache = cache_folder(config.hub.cache)
        store = self._c.paths.store
        return Puller(store, hub, cache, pace=self._pace, clock=self._c.clock, boot=self._boot)

    async def _token(self) -> token.Token | None:
        """The hub's token; an issue is open for as long as its file can be read by everybody."""
        found = await asyncio.to_thread(token.read, self._config().hub.token_file)
        if found is not None and found.shared:
            self._c.issues.open(
                TOKEN_SHARED, HOST, f"everybody on this host can read the hub's token in {found.place}",
                hint=f"chmod 600 {found.place.rpartition(' ')[2]}, and make a new token: the old one is known",
            )  # fmt: skip
        else:
            self._c.issues.close(TOKEN_SHARED, HOST)
        return found

    async def _settled(
        self, request: PullRequest, puller: Puller, meter: Meter
    ) -> tuple[list[Settled], Sequence[Load]]:
        """The parts with their commits, and what the same start brings to a disk besides: its image."""
        if request.repository is not None:
            return [await self._new(request, puller, meter)], ()
        parts, image = await self._parts(request)
        asking = asyncio.create_task(self._image(image))
        try:
            settled = [await puller.settle(part, request.revision, meter) for part in parts]
            return settled, await asking
        finally:
            asking.cancel()

    async def _image(self, image: str | None) -> Sequence[Load]:
        """What a start brings for its image; a Podman that does not answer keeps nobody from fetching weights."""
        with suppress(OutriderError):
            return () if image is None else await self._c.images.loads(image)
        return ()

    async def _new(self, request: PullRequest, puller: Puller, meter: Meter) -> Settled:
        """A repository as a model of its own, with the file and the commit that it turns out to be."""
        name, _, tag = str(request.repository).partition(":")
        form = Format.GGUF if tag or request.file is not None else Format.SAFETENSORS
        source = Source(name, request.revision or "main", Wanted(form, tag or None, request.file))
        found = await puller.settle(Part(name, source), request.revision, meter)
        file = found.steps[0].file.path if form is Format.GGUF else None
        exact = Source(name, found.commit, Wanted(form, file=file))
        return replace(found, part=Part(found.part.what, exact))

    async def _parts(self, request: PullRequest) -> tuple[list[Part], str | None]:
        """Which of a known model's variants and drafters, and the image that would run them.

        Raises `NotFound`, `Refused`."""
        entry = self._entry(str(request.model))
        wanted = request.variant or entry.variant
        planned = await self._planning.wished(entry, what_if=None if wanted is None else {"variant": wanted})
        name = wanted or (None if planned.plan is None else planned.plan.variant)
        if name is None and len(entry.variants) == 1:
            name = entry.variants[0].name
        if name is None:
            error = no_plan(entry, planned, {})
            names = ", ".join(v.name for v in entry.variants)
            error.hint = f"`outrider model pull {entry.name} --variant NAME` fetches one all the same: {names}"
            raise error
        variant = _named(entry.variants, name, entry, "variant")
        chosen: list[Variant | Drafter] = [variant]
        if request.all_drafters:
            chosen += [d for d in entry.drafters if d.format is variant.format and name in (d.variants or (name,))]
        elif request.drafters:
            chosen += [_named(entry.drafters, d, entry, "drafter") for d in request.drafters]
        else:
            # nobody can plan with weights of unknown size: then what the definition itself prefers
            own = entry.speculation.drafter or (entry.drafters[0].name if len(entry.drafters) == 1 else None)
            drafter = own if planned.plan is None else planned.plan.drafter
            chosen += [] if drafter is None else [_named(entry.drafters, drafter, entry, "drafter")]
        parts = []
        for thing in chosen:
            source = source_of(thing)
            if source is not None:
                parts.append(Part(thing.name, source))
        if not parts:
            raise Refused(
                f"{entry.name} {name} is a file of its own here, not a repository's: there is nothing to pull",
                hint=f"`outrider model verify {entry.name}` reads it again",
            )
        return parts, None if planned.plan is None else planned.plan.image

    def _room(self, missing: int, what: str, also: Sequence[Load], besides: Sequence[Load]) -> None:
        settings = self._config().store
        room.check(
            self._c.paths.store,
            missing,
            what,
            quota=settings.quota_bytes,
            low_water=settings.low_water,
            also=also,
            besides=besides,
        )

    def room_for(self, what: str) -> Callable[[int], None]:
        """Whether the store may take so many bytes of `what`: for files that are added. Blocking."""
        return lambda size: self._room(size, what, (), self._c.images.on_the_way.before())

    def _pins(self, settled: Sequence[Settled]) -> dict[str, str | None]:
        return {s.part.what: shelf.pinned(self._c.paths.store, s.part.source) for s in settled}

    def _define(self, request: PullRequest, done: Settled) -> ModelEntry:
        held = shelf.find(self._c.paths.store, done.part.source)
        if held is None:
            raise Refused(f"what was fetched for {request.name} is gone again", hint="pull it again")
        return defining.define(request, done.part.source, held, self._c.paths.models_d)

    def _tell(
        self, request: PullRequest, done: Sequence[Settled], before: Mapping[str, str | None], fetched: int
    ) -> None:
        for part in done:
            old, what = before[part.part.what], part.part.what
            evidence: dict[str, object] = {
                "repository": part.part.source.repository,
                "commit": part.commit,
                "bytes": part.total,
                "asked": part.asked,
            }
            moved = old is not None and old != part.commit
            code = "weights_moved" if moved else "weights_pulled"
            text = f"{what} of {request.subject} is {part.part.source.repository} at {part.commit[:12]}"
            text += f", and no longer at {old[:12]}" if moved and old is not None else ""
            self._c.journal.emit(
                "weights",
                code,
                text,
                deployment=request.subject,
                evidence={**evidence, "before": old, "fetched": fetched},
            )

    async def preview(self, asked: Mapping[str, Any]) -> PullPreview:
        """What a pull would do. Asks the hub for what is not here; writes nothing."""
        request = PullRequest.read(asked)
        wheel = await self._wheel(request)
        if wheel is not None:
            raise Refused(
                f"{request.subject} comes in a Python package, {wheel['wheel']}, whose size only the download tells",
                hint=f"`outrider model pull {request.subject}` fetches it",
            )
        puller = await self._puller()
        settled, image = await self._settled(request, puller, Meter(self._c.clock.now))
        store = self._c.paths.store
        total, missing = sum(part.total for part in settled), sum(part.missing for part in settled)
        problem: OutriderError | None = None
        try:
            may_pull(self._c.issues, KIND)
            await steadily(self._room, missing, request.subject, image, self._c.images.on_the_way.before())
        except DiskError as error:
            problem = error
        free = (await asyncio.to_thread(look, store)).free
        return PullPreview(
            subject=request.subject,
            parts=tuple(part.view(store) for part in settled),
            total_bytes=total,
            have_bytes=total - missing,
            fetch_bytes=missing,
            free_bytes=free,
            fits=problem is None,
            problem=None if problem is None else problem.detail,
            hint=None if problem is None else problem.hint,
        )

    # verify and remove

    async def verify(self, name: str) -> JobView:
        """Start reading a model's weights again. The job's result has each file. Raises `NotFound`."""
        entry = self._planning.find(name)

        async def work(handle: Handle) -> str:
            files = await self._verify(entry, handle)
            bad = [f for f in files if f.ok is False]
            handle.result({"ok": bool(files) and not bad, "files": [asdict(f) for f in files]})
            if not files:
                return f"nothing of {entry.name} is here: `outrider model pull {entry.name}` fetches it"
            if bad:
                return f"{len(bad)} of {count(len(files), 'file')} {'is' if len(bad) == 1 else 'are'} not as before"
            return f"{count(len(files), 'file is', 'files are')} right"

        return self._jobs.start("model_verify", entry.name, work)

    async def _verify(self, entry: ModelEntry, handle: Handle) -> list[CheckedFile]:
        store, loop = self._c.paths.store, asyncio.get_running_loop()
        meter = Meter(self._c.clock.now)
        meter.begin("reading")
        meter.total = await asyncio.to_thread(verifying.size, entry, store)
        ended = False

        def go_on(count: int) -> None:
            if ended:
                raise OSError("no longer wanted")
            loop.call_soon_threadsafe(meter.add, count)

        async with self._reporting(meter, handle):
            try:
                work = asyncio.to_thread(verifying.verify, entry, store, self._c.clock.wall(), go_on)
                files = await asyncio.shield(asyncio.ensure_future(work))
            finally:
                ended = True
        bad = [f for f in files if f.ok is False]
        if bad:
            self._c.issues.open(
                "weights_damaged", entry.name, f"{bad[0].path} {bad[0].detail}",
                hint=f"`outrider model pull {entry.name}` fetches what is damaged again; `dmesg` tells of the disk",
                evidence={"files": [f.path for f in bad][:10]},
            )  # fmt: skip
        else:
            self._c.issues.close("weights_damaged", entry.name)
        return files

    async def remove(self, entry: ModelEntry, *, weights: bool) -> None:
        """Forget a model that was added or pulled, and with `weights` remove what no other model uses.

        Raises `NotFound`, `Refused` (a person wrote its definition), `Conflict` (another model uses the weights, or
        some of their repository are on their way).
        """
        paths = self._c.paths
        others = self._planning.catalogue.models
        if weights:
            removal.check_still(entry, self._coming if self._one.locked() else ())
            await asyncio.to_thread(removal.check_unused, paths.store, entry, others)
        removed = 0
        forgotten = True
        try:
            await model_store.remove(entry.name, paths.store, paths.models_d, weights=weights)
        except NotFound:
            if not weights:
                raise
            forgotten = False
        if weights:
            removed = await asyncio.to_thread(removal.remove_weights, paths.store, entry, others)
        if not forgotten and not removed:
            raise NotFound(f"nothing of {entry.name} is here", hint="`outrider model ls` shows what there is")


def _named(things: Sequence[Any], name: str, entry: ModelEntry, kind: str) -> Any:
    for thing in things:
        if thing.name == name:
            return thing
    names = ", ".join(thing.name for thing in things) or "none"
    raise NotFound(f"{entry.name} has no {kind} {name!r}", hint=f"it has {names}")
