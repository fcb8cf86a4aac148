"""What needs what: engines, plans, models, the catalogue and jobs, each by name. A value, made anew at each look."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from containers import references
from containers.errors import ImageUnnamed
from orchestrator.catalogue import Catalogue
from orchestrator.deployment import Deployment
from orchestrator.file_facts import stored_at
from orchestrator.housekeeping.water import WRITES, Use
from orchestrator.models import ModelEntry
from orchestrator.plan import Plan
from orchestrator.views import Desired, JobState, JobView
from orchestrator.weights.choosing import Source, source_of, things

Named = Mapping[str, tuple[str, ...]]
"""A thing to what needs it, in words."""
CATALOGUE = "catalogue"
"""The origin of a model that no file of the owner's defines."""


@dataclass(frozen=True, slots=True)
class Claims:
    """`used_*` are needed now, `wanted_*` may be needed again.

    Images are claimed by id, or by reference (as `full` writes it); weights by the paths of files or folders,
    those of a hub by their source; volumes by name.
    """

    used_images: Named = field(default_factory=dict)
    wanted_images: Named = field(default_factory=dict)
    used_paths: Named = field(default_factory=dict)
    wanted_paths: Named = field(default_factory=dict)
    used_sources: Mapping[Source, tuple[str, ...]] = field(default_factory=dict)
    wanted_sources: Mapping[Source, tuple[str, ...]] = field(default_factory=dict)
    used_volumes: Named = field(default_factory=dict)
    unplanned: tuple[str, ...] = ()
    """Deployments that are meant to run and have no plan yet: nobody knows which image they need."""
    image_jobs: tuple[str, ...] = ()
    weights_jobs: tuple[str, ...] = ()
    """Jobs that put something onto a disk right now, in words; what they bring is not yet claimed by anything."""


def gather(
    deployments: Sequence[Deployment],
    catalogues: Sequence[Catalogue],
    jobs: Sequence[JobView],
    store: str,
    *,
    pins: Sequence[str] = (),
    unread: tuple[str, ...] = (),
) -> Claims:
    """The claims of this daemon. `store` is the store's folder; `catalogues` are the one in force and the one
    that the files on disk would make: a model that is written down and not yet taken up has its claims too.
    `pins` are pinned images, `name@digest`; `unread` are files that could not be read, in words: they may claim
    any weights."""
    notes = _Notes(store)
    unplanned = []
    for deployment in deployments:
        for engine in deployment.live():
            notes.plan(engine.plan, f"engine {engine.name}")
        if deployment.wanted is not None:
            notes.plan(deployment.wanted, f"the plan of {deployment.name}")
        elif deployment.desired is not Desired.STOPPED:
            unplanned.append(f"deployment {deployment.name}, which has no plan yet")
    known = frozenset(deployment.name for deployment in deployments)
    for catalogue in catalogues:
        for entry in catalogue.models:
            notes.model(entry, catalogue, deployed=entry.name in known)
        for image in catalogue.images:
            reference = full(image.reference)
            for named in {reference, reference if image.digest is None else pinned(reference, image.digest)}:
                notes.wanted_images[named].append(f"{image.name} of the catalogue")
    for pin in pins:
        notes.used_images[pin].append(f"the pin of {pin.partition('@')[0]}")
    return Claims(
        used_images=_frozen(notes.used_images),
        wanted_images=_frozen(notes.wanted_images),
        used_paths=_frozen(notes.used_paths),
        wanted_paths=_frozen(notes.wanted_paths),
        used_sources={source: tuple(dict.fromkeys(by)) for source, by in notes.used_sources.items()},
        wanted_sources={source: tuple(dict.fromkeys(by)) for source, by in notes.wanted_sources.items()},
        used_volumes=_frozen(notes.used_volumes),
        unplanned=tuple(unplanned),
        image_jobs=_writing(jobs, Use.IMAGES),
        weights_jobs=(*_writing(jobs, Use.STORE), *unread),
    )


def full(reference: str) -> str:
    """A reference in the one way to write it; what is none (an id) stays as it is."""
    try:
        return references.parse(reference).exact
    except ImageUnnamed:
        return reference


def pinned(reference: str, digest: str) -> str:
    """The name at this digest."""
    return references.parse(reference).pinned(digest).exact


class _Notes:
    """Claims while they are collected."""

    def __init__(self, store: str) -> None:
        self.store = store
        self.used_images: dict[str, list[str]] = defaultdict(list)
        self.wanted_images: dict[str, list[str]] = defaultdict(list)
        self.used_paths: dict[str, list[str]] = defaultdict(list)
        self.wanted_paths: dict[str, list[str]] = defaultdict(list)
        self.used_sources: dict[Source, list[str]] = defaultdict(list)
        self.wanted_sources: dict[Source, list[str]] = defaultdict(list)
        self.used_volumes: dict[str, list[str]] = defaultdict(list)

    def plan(self, plan: Plan, by: str) -> None:
        self.used_images[plan.image if plan.image_resolved else full(plan.image)].append(by)
        for mount in plan.mounts:
            if mount.source.startswith(f"{self.store}/"):
                self.used_paths[mount.source].append(by)
        for volume, _ in plan.caches:
            self.used_volumes[volume].append(by)

    def model(self, entry: ModelEntry, catalogue: Catalogue, *, deployed: bool) -> None:
        shipped = catalogue.origins.get(entry.name, CATALOGUE) == CATALOGUE
        by = f"{entry.name} of the catalogue" if shipped else f"model {entry.name}"
        for thing in things(entry):
            apart = shipped and not deployed
            source = source_of(thing)
            if source is not None:
                (self.wanted_sources if apart else self.used_sources)[source].append(by)
            (self.wanted_paths if apart else self.used_paths)[stored_at(self.store, thing)].append(by)
        if entry.image is not None:
            reference = next((i.reference for i in catalogue.images if i.name == entry.image), entry.image)
            self.wanted_images[full(reference)].append(by)


def _frozen(notes: Mapping[str, list[str]]) -> Named:
    return {key: tuple(dict.fromkeys(by)) for key, by in notes.items()}


def _writing(jobs: Sequence[JobView], use: Use) -> tuple[str, ...]:
    return tuple(
        f"{job.kind} of {job.subject}"
        for job in jobs
        if job.state is JobState.RUNNING and use in WRITES.get(job.kind, frozenset())
    )
