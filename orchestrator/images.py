"""The images of a host: which there are and who uses them, pins, pulls, removal.

A pin says which digest a name means on this host. It is of the index where a name stands for images of
several architectures: that is what the registry hands out under the name, and each machine picks its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from containers import references
from containers.errors import AuthFailed, ContainerError, FetchError, SourceFailed
from containers.podman import Podman
from containers.pulling import PullProgress
from containers.references import Reference
from containers.spec import ImageInfo
from orchestrator.catalogue import EMBEDDED_IMAGE, Catalogue
from orchestrator.catalogue.types import ImageEntry
from orchestrator.clock import Clock
from orchestrator.disk import Load, OnTheWay
from orchestrator.errors import NotFound, Refused
from orchestrator.events import Journal
from orchestrator.image_pulls import ImagePulls
from orchestrator.image_sources import ImageSources
from orchestrator.plan import Plan, Planned, Reason
from orchestrator.store import PinRow, Store
from orchestrator.views import ImageNeedsView, ImageView, JobView, PinView

Users = Callable[[], Mapping[str, tuple[bool, Sequence[str]]]]
"""Deployments by name: whether it runs or is to run, and the images (ids or references) of its engines and plan."""


class Images:
    """The images of one host. `configure` gives it the catalogue, `attend` the deployments."""

    def __init__(
        self,
        *,
        podman: Podman,
        store: Store,
        journal: Journal,
        clock: Clock,
        sources: ImageSources,
        pulls: ImagePulls,
        pulls_at_start: Callable[[], bool],
    ) -> None:
        self._podman = podman
        self._store = store
        self._journal = journal
        self._clock = clock
        self._sources = sources
        self.pulls = pulls
        self._pulls_at_start = pulls_at_start
        self._pins: dict[str, PinRow] = {}
        self._entries: tuple[ImageEntry, ...] = ()
        self._users: Users = dict

    async def read(self) -> None:
        """Read the pins. Raises `DatabaseFailed`."""
        self._pins = {pin.reference: pin for pin in await self._store.pins()}

    def configure(self, catalogue: Catalogue) -> None:
        """Take up a catalogue."""
        self._entries = catalogue.images

    def attend(self, users: Users) -> None:
        """Say who uses images."""
        self._users = users

    # plans

    def named(self, found: Planned) -> Planned:
        """The planner's answer with pinned images under their digests."""
        one = None if found.plan is None else self._named(found.plan)
        rungs = tuple(replace(rung, plan=self._named(rung.plan)) for rung in found.ladder)
        return replace(found, plan=one, alternatives=tuple(self._named(p) for p in found.alternatives), ladder=rungs)

    def _named(self, plan: Plan) -> Plan:
        reference = self._reference(plan.image)
        if plan.image_resolved or reference is None or reference.local or reference.digest is not None:
            return plan
        pin = self._pins.get(reference.exact)
        digest = pin.digest if pin is not None else self._catalogued(reference)
        if digest is None:
            return plan
        who = "the catalogue" if pin is None else pin.author
        reason = Reason("image_pinned", f"{reference} is pinned to {digest} by {who}")
        return replace(plan, image=reference.pinned(digest).exact, reasons=(*plan.reasons, reason))

    def _catalogued(self, reference: Reference) -> str | None:
        return next((e.digest for e in self._entries if e.digest and self._reference(e.reference) == reference), None)

    def known_bytes(self, reference: Reference) -> int | None:
        """What the catalogue says that an image takes unpacked."""
        for entry in self._entries:
            named = self._reference(entry.reference)
            if named is not None and named.name == reference.name and entry.size_bytes is not None:
                return entry.size_bytes
        return None

    async def loads(self, image: str) -> Sequence[Load]:
        """What a start that needs this image would still put onto disks for it; nothing when it is here or no start
        brings it. Raises Podman's errors."""
        reference = self._reference(image)
        if reference is None or reference.local or not self.pulls_at_start:
            return ()
        return () if await self._podman.image(image) is not None else await self.pulls.loads(reference)

    @property
    def on_the_way(self) -> OnTheWay:
        """What pulls are bringing to the disks now."""
        return self.pulls.on_the_way

    @property
    def pulls_at_start(self) -> bool:
        """Whether a start may pull what it needs."""
        return self._pulls_at_start()

    async def fetch(
        self,
        image: str,
        *,
        by: str,
        watch: Callable[[PullProgress], None] = lambda _: None,
    ) -> ImageInfo | None:
        """Bring an image that a start needs; None for one that no registry has (built here, or named by its id)."""
        reference = self._reference(image)
        if reference is None or reference.local:
            return None
        return await self.pulls.wait(reference, by=by, watch=watch)

    # what a person asks

    def pull(self, name: str, *, author: str) -> JobView:
        """Begin a pull, of a reference or of an image of the catalogue by its name; a pinned one by its digest."""
        reference = self._meant(name)
        pin = self._pins.get(reference.exact)
        digest = pin.digest if pin is not None else self._catalogued(reference)
        wanted = reference if digest is None else Reference(reference.registry, reference.repository, None, digest)
        return self.pulls.start(wanted, by=author)

    async def pin(self, name: str, digest: str | None, *, author: str) -> PinView:
        """Say which digest a name means here; without one, what its registry says now (else what is here).

        Raises `NotOffered` for a digest that the registry has not, `UsageError`-like `Refused` for a name that
        cannot be pinned, and what kept the registry from answering.
        """
        reference = self._meant(name)
        if reference.local or reference.digest is not None:
            why = "is built here" if reference.local else "names its digest already"
            raise Refused(f"{reference} {why}: there is nothing to pin", hint="pin a name with a tag")
        wanted = reference if digest is None else reference.pinned(digest)
        try:
            found = (await self._sources.find(wanted)).offer
            if found is None:
                raise SourceFailed(
                    f"{reference.registry} did not answer about {reference}",
                    hint=f"once {wanted} is here it can be pinned without its registry: `outrider image pull {wanted}`",
                )
            resolved = found.digest
        except (SourceFailed, AuthFailed) as error:
            resolved = await self._here(wanted, digest, error)
        row = PinRow(reference.exact, resolved, author, self._clock.wall())
        await self._store.pin(row)
        self._pins[row.reference] = row
        self._emit("image_pinned", f"{author} pins {reference} to {resolved}", image=row.reference, digest=resolved)
        return _pin(row)

    async def _here(self, wanted: Reference, digest: str | None, error: FetchError) -> str:
        """The digest of the local image, where the registry cannot be asked."""
        info = await self._podman.image(wanted.exact)
        if info is None:
            raise error
        known = [d.rpartition("@")[2] for d in info.digests if d.startswith(f"{wanted.name}@")]
        if digest is not None and digest in known:
            return digest
        if digest is None and info.digest is not None and info.digest in known:
            return info.digest
        raise error

    async def unpin(self, name: str, *, author: str) -> None:
        """Forget a pin. Raises `NotFound`."""
        reference = self._meant(name)
        if not await self._store.unpin(reference.exact):
            raise NotFound(f"{reference} is not pinned", hint="`outrider image ls` shows what is")
        self._pins.pop(reference.exact, None)
        self._emit("image_unpinned", f"{author} unpins {reference}", image=reference.exact)

    async def remove(self, name: str, *, force: bool, author: str) -> ImageView:
        """Remove an image (or one of its names); what it was. `force` removes a pinned one and its pin.

        Raises `NotFound`, and `Refused` while a deployment uses it: naming those, whatever `force` says.
        """
        text = name if references.is_id(name) else self._meant(name).exact
        view = next((v for v in await self.list() if v.id is not None and _is(v, text)), None)
        if view is None or view.id is None:
            raise NotFound(f"there is no image {text} here", hint="`outrider image ls` shows what there is")
        if view.used_by:
            raise Refused(
                f"{text} is used by {', '.join(view.used_by)}",
                hint=f"`outrider stop {view.used_by[0]}` first",
                evidence={"image": text, "used_by": list(view.used_by)},
            )
        if view.pinned is not None and not force:
            raise Refused(
                f"{text} is pinned to {view.pinned.digest} by {view.pinned.author}",
                hint="`--force` removes it and its pin; `outrider image pin NAME --unpin` the pin alone",
                evidence={"image": text, "digest": view.pinned.digest},
            )
        await self._podman.remove_image(text)
        if await self._podman.image(view.id) is None:
            await self._store.forget_pulled(view.id)
        if view.pinned is not None:
            await self.unpin(view.pinned.reference, author=author)
        self._emit("image_removed", f"{author} removes {text}", image=text, id=view.id, bytes=view.size)
        return view

    async def list(self) -> Sequence[ImageView]:
        """The images that are here and could run an engine, and those of the catalogue that are not here.

        What is here and is neither of the catalogue, pinned, used, built or pulled by Outrider is somebody else's.
        """
        found = await self._podman.images()
        pulled = await self._store.pulled()
        users = self._users()
        views: list[ImageView] = []
        told: set[str] = set()
        for info in found:
            views.extend(view for view in self._views(info, users) if info.id in pulled or self._ours(view))
            told |= {v.reference for v in views} | set(info.digests)
        for entry in self._entries:
            reference = self._reference(entry.reference)
            name = entry.reference if reference is None else reference.exact
            if name not in told and not any(entry.name in v.catalogue for v in views):
                views.append(self._view(None, name, users))
        return sorted(views, key=lambda v: (v.id is None, v.reference, v.id or ""))

    def _views(self, info: ImageInfo, users: Mapping[str, tuple[bool, Sequence[str]]]) -> Sequence[ImageView]:
        names = info.names or info.digests[:1] or (info.id,)
        return [self._view(info, name, users) for name in names]

    def _view(self, info: ImageInfo | None, name: str, users: Mapping[str, tuple[bool, Sequence[str]]]) -> ImageView:
        mine = {name} if info is None else {name, info.id, *info.names, *info.digests}
        pin = next((p for p in self._pins.values() if p.reference in mine or _pinned_name(p) in mine), None)
        entries = [e for e in self._entries if self._exact(e.reference) in mine or self._digested(e) in mine]
        needs = entries[0] if entries else None
        return ImageView(
            reference=name,
            id=None if info is None else info.id,
            digest=None if info is None else info.digest,
            size=None if info is None else info.size,
            pinned=None if pin is None else _pin(pin),
            used_by=tuple(
                sorted(n for n, (runs, images) in users.items() if runs and mine & {self._exact(i) for i in images})
            ),
            catalogue=tuple(e.name for e in entries),
            built_here=self._exact(name).startswith("localhost/"),
            needs=None if needs is None else _needs(needs),
        )

    @staticmethod
    def _ours(view: ImageView) -> bool:
        embedded = view.reference.startswith(EMBEDDED_IMAGE)
        return bool(view.catalogue or view.pinned or view.used_by or embedded)

    def _digested(self, entry: ImageEntry) -> str | None:
        reference = self._reference(entry.reference)
        return None if reference is None or entry.digest is None else reference.pinned(entry.digest).exact

    # names

    def _meant(self, name: str) -> Reference:
        """A reference, or an image of the catalogue by its name. Raises `ImageUnnamed`."""
        entry = next((e for e in self._entries if e.name == name), None)
        return references.parse(entry.reference if entry is not None else name)

    @staticmethod
    def _reference(image: str) -> Reference | None:
        try:
            return references.parse(image)
        except ContainerError:
            return None

    def _exact(self, image: str) -> str:
        reference = self._reference(image)
        return image if reference is None else reference.exact

    def _emit(self, code: str, text: str, **evidence: object) -> None:
        self._journal.emit("images", code, text, evidence=evidence)


def _is(view: ImageView, text: str) -> bool:
    return text in {view.reference, view.id, f"sha256:{text}"}


def _pinned_name(pin: PinRow) -> str:
    return references.parse(pin.reference).pinned(pin.digest).exact


def _pin(row: PinRow) -> PinView:
    return PinView(row.reference, row.digest, row.author, row.at)


def _needs(entry: ImageEntry) -> ImageNeedsView:
    return ImageNeedsView(
        vendor=entry.vendor,
        arch=entry.arch,
        machine=entry.machine,
        driver=entry.driver,
        cuda=entry.cuda,
        kernel=entry.kernel,
        compressed_bytes=entry.compressed_bytes,
        size_bytes=entry.size_bytes,
        source=entry.needs_source,
    )
