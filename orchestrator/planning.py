"""Planning on this host as it is now: gathers what the pure planner needs, and pins the image.

Facts come from the host watch, models from the configuration laid over the catalogue, files from
disk (read once until they change), images from Podman.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from typing import Any

from containers.errors import ImageMissing
from containers.podman import Podman
from containers.spec import ImageInfo
from hosts.bounded import Stuck, bounded
from hosts.facts import HostFacts
from orchestrator import catalogue as catalogues
from orchestrator import device_need, planner
from orchestrator.admission import Admission
from orchestrator.catalogue import EMBEDDED_IMAGE, Catalogue
from orchestrator.clock import Clock
from orchestrator.config import Config
from orchestrator.device_need import Device, Need
from orchestrator.errors import (
    DeviceMissing,
    DiskError,
    DoesNotFit,
    ModelFileError,
    OutriderError,
    Refused,
    WeightsMissing,
)
from orchestrator.file_facts import FileProblem, Files, location
from orchestrator.images import Images
from orchestrator.measured import NOTHING, Measured
from orchestrator.measuring import deadlines, ran
from orchestrator.model_files import FileReader
from orchestrator.models import ModelEntry
from orchestrator.paths import Paths
from orchestrator.plan import Method, Plan, Planned, Rejected
from orchestrator.planner.places import DEVICE_UNNAMED
from orchestrator.runtimes import adapter
from orchestrator.timing import Timing
from orchestrator.views import ModelView
from orchestrator.weights.choosing import things
from orchestrator.weights.existing import cache_folder
from orchestrator.weights.shown import shown

Fetch = Callable[[str], Awaitable[ImageInfo | None]]
"""Brings an image by its reference; None where no registry has it."""
SHOWN_REJECTIONS = 3
FILES_DEADLINE = 10.0
"""Seconds for the heads of a model's files."""
MISSING = frozenset({"weights_missing", "drafter_missing"})
"""Reasons with which the planner says that a plan's files are not on this host yet."""


class Planning:
    """Plans for one host."""

    def __init__(
        self,
        paths: Paths,
        config: Config,
        admission: Admission,
        podman: Podman,
        clock: Clock,
        *,
        images: Images | None = None,
        timing: Timing | None = None,
        measured: Callable[[], Measured] = lambda: NOTHING,
    ) -> None:
        """Without `images` no image is pinned. `measured` is what this host has learned from running so far."""
        self._timing = timing or Timing()
        self._measured = measured
        self._paths = paths
        self._images = images
        self._clock = clock
        self._podman = podman
        self._reader = FileReader()
        self._shipped = catalogues.shipped()
        self._admission = admission
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Take up another configuration."""
        self._folders = config.store.folders
        self.log_bytes = config.logs.engine_bytes
        """What the log of an engine that is started from now on may have. No part of a plan: it launches nothing."""
        self._cache = str(cache_folder(config.hub.cache))
        self._catalogue: Catalogue = config.laid_over(self._shipped)
        if self._images is not None:
            self._images.configure(self._catalogue)
        self.image_settings = config.images
        self.low_water = config.store.low_water
        self._defaults = planner.Preferences.of_host(config.defaults)

    @property
    def shipped(self) -> Catalogue:
        """The catalogue as it comes with Outrider."""
        return self._shipped

    @property
    def catalogue(self) -> Catalogue:
        """The catalogue in force: the shipped one with the configuration laid over it."""
        return self._catalogue

    @property
    def model_folders(self) -> tuple[str, ...]:
        """Where weights may lie: the store, the folders that the configuration names, a Hugging Face cache."""
        return (str(self._paths.store), *self._folders, self._cache)

    def entry(self, name: str) -> ModelEntry | None:
        """The model of this public name or alias."""
        return self._catalogue.model(name)

    def find(self, name: str) -> ModelEntry:
        """`entry`, or `NotFound` with the nearest name."""
        return self._catalogue.find(name)

    def on_cpu(self, entry: ModelEntry) -> bool:
        """Whether the owner named an image for the CPU, for this model or for the host: then no GPU matters to it."""
        image = entry.image or self._defaults.image
        named = (i for i in self._catalogue.images if image in (i.name, i.reference))
        return image is not None and any(i.vendor is None for i in named)

    def load_limit(self, plan: Plan, seen: float | None) -> float:
        """Seconds that a start of this plan may take; `seen` is how long starts took here before."""
        return deadlines.load_limit(self._timing.load, self.load_prior(plan), seen)

    def load_prior(self, plan: Plan) -> float:
        """Seconds that a start of this plan usually takes, until this host has seen one."""
        arch = ran.of(plan, self._admission.facts).arch
        return adapter(plan.runtime).load_prior_s(plan.expected_memory.weights, deadlines.backend(plan, arch), arch)

    def device_need(self, entry: ModelEntry, last: Sequence[Device], why: str) -> Need | None:
        """See `device_need.need`: with the images and defaults of this host."""
        return device_need.need(entry, entry.image or self._defaults.image, self._catalogue.images, last, why)

    async def planned(self, entry: ModelEntry, *, what_if: Mapping[str, Any] | None = None) -> Planned:
        """The planner's whole answer for this host as it is now. Some 20 ms of computing, off the event loop."""
        files = await self._files(entry)
        facts = self._admission.facts_for(entry.name)
        return await asyncio.to_thread(self._planned, entry, files, what_if, facts)

    async def explained(self, entry: ModelEntry, *, what_if: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """`planned` as JSON; with a `what_if` also what that changed."""
        files, facts = await self._files(entry), self._admission.facts_for(entry.name)
        found = await asyncio.to_thread(self._planned, entry, files, what_if, facts)
        if not what_if:
            return found.to_dict()
        without = await asyncio.to_thread(self._planned, entry, files, None, facts)
        return {**found.to_dict(), "changes": planner.changes(without, found)}

    def _planned(self, entry: ModelEntry, files: Files, what_if: Mapping[str, Any] | None, facts: HostFacts) -> Planned:
        found = planner.plan(
            entry,
            facts,
            self._catalogue,
            files,
            what_if=what_if,
            defaults=self._defaults,
            store=str(self._paths.store),
            today=self._clock.today(),
            measured=self._measured(),
        )
        return self._named(found)

    async def wished(self, entry: ModelEntry, *, what_if: Mapping[str, Any] | None = None) -> Planned:
        """The planner's answer as if nothing that can be fetched were here, and every GPU could be given to
        containers already: what is worth fetching."""
        named = {location(t) for t in things(entry) if t.path is not None}
        files = {place: facts for place, facts in (await self._files(entry)).items() if place in named}
        facts = self._admission.facts_for(entry.name)
        named_gpus = tuple(
            a if a.devices else dataclasses.replace(a, devices=(f"{a.vendor} {a.pci}",)) for a in facts.accelerators
        )
        named_facts = dataclasses.replace(facts, accelerators=named_gpus)
        return await asyncio.to_thread(self._planned, entry, files, what_if, named_facts)

    async def plan(
        self,
        entry: ModelEntry,
        *,
        speculate: bool = True,
        running: Plan | None = None,
        fetch: Fetch | None = None,
        choose: Callable[[Planned], Planned] = lambda found: found,
    ) -> Plan:
        """The plan to launch, its image pinned to an id; `fetch` brings an image that is not here.

        With `speculate` False the same without its speculation: that of `running`, or of what would be
        planned now. `choose` may take another rung of the ladder. Raises `DoesNotFit`, `Refused` (with
        the reasons of what came nearest), `ModelFileError` for a bad file, `ImageMissing`.
        """
        files = await self._files(entry)
        found = choose(await self.planned(entry)) if speculate or running is None else Planned(running)
        if not speculate and found.plan is not None and found.plan.method is not Method.NONE:
            found = self._named(
                planner.without_speculation(
                    found.plan,
                    entry,
                    self._admission.facts_for(entry.name),
                    self._catalogue,
                    files,
                    defaults=self._defaults,
                    store=str(self._paths.store),
                    measured=self._measured(),
                )
            )
        if found.plan is None:
            raise no_plan(entry, found, files)
        absent = [r.text for r in found.plan.reasons if r.code in MISSING]
        if absent:
            raise WeightsMissing(
                "; ".join(absent),
                hint=f"`outrider start {entry.name} --pull` fetches what is missing, then starts",
                evidence={"model": entry.name},
            )
        return await self._pinned(found.plan, fetch)

    def _named(self, found: Planned) -> Planned:
        return found if self._images is None else self._images.named(found)

    async def _files(self, entry: ModelEntry) -> Files:
        """Raises `DiskError` when a disk does not answer (a file server that is away): whoever waits for
        this, the reconcile loop among them, must not wait for ever."""

        def look() -> Files:
            return self._reader.inspect(entry, self._paths.store)

        try:
            return await asyncio.to_thread(bounded, f"files of {entry.name}", FILES_DEADLINE, look)
        except Stuck as error:
            failed = DiskError(
                f"the files of {entry.name} cannot be looked at: {error}",
                hint="a disk or file server does not answer: `findmnt`, `dmesg | tail`",
            )
            failed.retryable = True
            raise failed from error

    async def _pinned(self, plan: Plan, fetch: Fetch | None) -> Plan:
        image = await self._podman.image(plan.image)
        if image is None and fetch is not None:
            image = await fetch(plan.image)
        if image is None:
            if plan.image.startswith(EMBEDDED_IMAGE):
                get = "`outrider image build cpu` builds the embedded engine"
            elif plan.image.startswith("localhost/"):
                get = f"it is one of this machine's own: `podman build -t {plan.image} FOLDER` makes it"
            else:
                get = f"`outrider image pull {plan.image}` fetches it"
            raise ImageMissing(
                f"image {plan.image} is not in local storage",
                hint=f"{get}; then `outrider start {plan.model}`",
                evidence={"image": plan.image},
            )
        return planner.resolve(plan, image.id)

    async def models(self) -> Sequence[ModelView]:
        """Every model that has a name here, with the state of its files."""
        return [await self._model(entry) for entry in sorted(self._catalogue.models, key=lambda m: m.name)]

    async def _model(self, entry: ModelEntry) -> ModelView:
        try:
            files = await self._files(entry)
            weights = await asyncio.to_thread(shown, entry, self._paths.store, files)
        except DiskError as error:  # one model's disk that does not answer hides no other model
            files, weights = {"": FileProblem(str(self._paths.store), error.detail)}, ()
        problems = [f for f in files.values() if isinstance(f, FileProblem)]
        sizes = [f.size for f in files.values() if not isinstance(f, FileProblem)]
        missing = not any(w.kind == "variant" and w.state == "here" for w in weights)
        return ModelView(
            name=entry.name,
            aliases=entry.aliases,
            variants=tuple(v.name for v in entry.variants),
            drafters=tuple(d.name for d in entry.drafters),
            origin=self._catalogue.origins.get(entry.name, "catalogue"),
            weight_bytes=sum(sizes)
            if sizes
            else next((v.weight_bytes for v in entry.variants if v.weight_bytes), None),
            files_ok=not problems and not missing,
            problem=problems[0].text if problems else "the weights are not here yet" if missing else None,
            weights=weights,
        )


def no_plan(entry: ModelEntry, found: Planned, files: Files) -> OutriderError:
    """Why nothing can be launched: the files' own problems first, then what came nearest."""
    for problem in files.values():
        if isinstance(problem, FileProblem):
            return ModelFileError(problem.text, hint=problem.hint, evidence={"path": problem.path})
    nearest: list[Rejected] = list(found.rejected[:SHOWN_REJECTIONS])
    evidence = {"rejected": [f"{r.runtime} {r.variant} {r.method}: {r.text}" for r in found.rejected[:10]]}
    text = "; ".join(f"{r.runtime} with {r.method}: {r.text}" for r in nearest) or "no runtime and image for this host"
    codes = {r.code for r in found.rejected}
    too_big = DoesNotFit.code in codes
    unnamed = next((r.text for r in found.rejected if r.code == DEVICE_UNNAMED), None)
    if unnamed is not None and not too_big:
        return DeviceMissing(
            f"{entry.name} waits for a GPU: {unnamed}",
            hint="`outrider doctor` says what is missing; the model starts by itself when the device can be given"
            ' to containers. To run it on the CPU: `image = "embedded-cpu"` in its definition',
            evidence=evidence,
        )
    error = (DoesNotFit if too_big else Refused)(
        f"nothing can be launched for {entry.name}: {text}",
        hint=f"{_next_step(codes)}`outrider plan {entry.name}` shows everything that was tried",
        evidence=evidence,
    )
    error.retryable = too_big  # it may fit when something else has gone
    return error


def _next_step(codes: Set[str]) -> str:
    """What helps against these rejections, where that is known."""
    if DoesNotFit.code in codes:
        return "stop another model, or give this one less context or fewer parallel sequences; "
    if "size_unknown" in codes:
        return "`outrider model pull` fetches its weights, whose size is known then; "
    if codes and all(code.startswith("drafter_") for code in codes):
        return 'use the drafter that was made for this model, or set speculation.method = "none"; '
    return ""
