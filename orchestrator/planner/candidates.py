"""Which combinations exist at all: devices x image x variant x method x drafter, and why the rest does not."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hosts.facts import Accelerator, HostFacts
from orchestrator.catalogue import choosing
from orchestrator.catalogue.types import Catalogue, Combination, ImageEntry
from orchestrator.file_facts import FileFacts, FileProblem, Files, location, mismatch, no_mtp_head
from orchestrator.image_needs import Unmet, unmet
from orchestrator.models import Drafter, ModelEntry, Runtime, Shape, Variant
from orchestrator.plan import Evidence, Method, Rejected
from orchestrator.planner.places import Group, Places, images, no_image
from orchestrator.planner.wishes import Preferences
from orchestrator.runtimes import ADAPTERS

AUTO = (Method.DFLASH, Method.DSPARK, Method.EAGLE3, Method.MTP, Method.DRAFT)
"""What `auto` looks for, best first; then `none`. n-gram lookup pays only for some texts: on request."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One thing that could be launched. No devices are the CPU; facts are None for files not read."""

    devices: Group
    image: ImageEntry
    variant: Variant
    target: FileFacts | None
    method: Method
    drafter: Drafter | None
    drafter_file: FileFacts | None
    known: Combination | None
    evidence: Evidence
    model: str = ""
    """The public name."""

    @property
    def device(self) -> Accelerator | None:
        """What it runs on: one of its devices stands for all, for they are identical. None is the CPU."""
        return self.devices[0] if self.devices else None

    @property
    def tensor_parallel(self) -> int:
        """How many devices share the model."""
        return max(len(self.devices), 1)

    @property
    def shape(self) -> Shape | None:
        """The file's own word, else the catalogue's."""
        return self.target.shape if self.target is not None and self.target.shape is not None else self.variant.shape

    @property
    def drafter_shape(self) -> Shape | None:
        file = self.drafter_file
        if file is not None and file.shape is not None:
            return file.shape
        return None if self.drafter is None else self.drafter.shape

    @property
    def weights(self) -> int | None:
        if self.target is not None:
            return self.target.size
        return self.variant.weight_bytes

    @property
    def drafter_bytes(self) -> int | None:
        if self.drafter is None:
            return 0
        return self.drafter.weight_bytes if self.drafter_file is None else self.drafter_file.size

    @property
    def longest_draft(self) -> int | None:
        """What the drafter was trained for; None has no limit of its own."""
        if self.drafter_file is not None and self.drafter_file.drafter is not None:
            return self.drafter_file.drafter.longest
        return None if self.drafter is None else self.drafter.draft_tokens

    @property
    def draft_ranks(self) -> int:
        """Over how many of the devices the drafter is split: all of them, or one where its heads cannot be shared."""
        return self.tensor_parallel if evenly(self.drafter_shape, self.tensor_parallel) else 1

    def reject(self, code: str, text: str, source: str | None = None) -> Rejected:
        return Rejected(
            runtime=self.image.runtime.value,
            variant=self.variant.name,
            method=self.method,
            code=code,
            text=text,
            source=source,
            evidence=self.evidence,
            drafter=None if self.drafter is None else self.drafter.name,
            image=self.image.reference,
        )


def evenly(shape: Shape | None, number: int) -> bool:
    """Whether so many devices can share every layer: query heads are split; key heads too, or repeated where they are
    fewer (vLLM 0.33.0 config/model.py, model_executor/layers/linear.py QKVParallelLinear). Unknown heads can be."""
    if shape is None or number == 1:
        return True
    keys = shape.kv_heads
    return (shape.heads is None or shape.heads % number == 0) and (not keys or keys % number == 0 or number % keys == 0)


@dataclass(frozen=True, slots=True)
class Search:
    """All that enumeration looks at."""

    entry: ModelEntry
    facts: HostFacts
    catalogue: Catalogue
    files: Files
    wish: Preferences
    today: dt.date | None
    places: Places


def enumerate_all(search: Search) -> tuple[list[Candidate], list[Rejected]]:
    """Candidates in a fixed order, and what was turned down on the way."""
    found: list[Candidate] = []
    rejected: list[Rejected] = []
    unknown = [r for r in (_unnamed(search, "variant"), _unnamed(search, "drafter")) if r is not None]
    if unknown:
        return [], unknown
    places = search.places
    starts = places.starts(search.wish.tensor_parallel)
    too_few = _too_few(search, starts)
    for variant in search.entry.variants:
        if search.wish.variant not in (None, variant.name):
            continue
        file = search.files.get(location(variant))
        if isinstance(file, FileProblem):
            text = file.text if file.hint is None else f"{file.text}; {file.hint}"
            rejected.append(_early(variant, None, Method.NONE, "model_file", text))
            continue
        for code, text in (*places.unfit, *too_few):
            rejected.append(_early(variant, None, Method.NONE, code, text))
        pairs, unfit = _runnable(search, variant, starts)
        rejected.extend(unfit)
        if not pairs and not unfit and starts:
            rejected.append(_early(variant, None, Method.NONE, "no_image", no_image(variant, starts)))
        for group, image in pairs:
            for outcome in _methods(search, variant, file, group, image):
                if isinstance(outcome, Rejected):
                    rejected.append(outcome)
                else:
                    found.append(outcome)
    return found, list(dict.fromkeys(rejected))


def _unnamed(search: Search, what: str) -> Rejected | None:
    """That the variant or drafter which was asked for is none of this model's."""
    asked, entry = getattr(search.wish, what), search.entry
    names = [thing.name for thing in (entry.variants if what == "variant" else entry.drafters)]
    if asked is None or asked in names:
        return None
    text = f"{entry.name} has no {what} {asked!r}; it has {', '.join(names) or 'none'}"
    method = search.wish.method or Method.NONE
    return Rejected("", asked if what == "variant" else search.wish.variant or "", method, f"no_{what}", text)


def _early(variant: Variant, runtime: Runtime | None, method: Method, code: str, text: str) -> Rejected:
    named = runtime or variant.loaders[0]
    return Rejected(named.value, variant.name, method, code, text)


def _too_few(search: Search, starts: Sequence[Group]) -> tuple[tuple[str, str], ...]:
    """That no kind of device is there as often as was asked for."""
    wanted = search.wish.tensor_parallel
    if wanted is None or wanted == 1 or any(starts):
        return ()
    most = max((len(kind) for kind in search.places.kinds), default=0)
    return (("too_few_gpus", f"{wanted} identical GPUs are asked for, this host has {most or 'none'}"),)


def _runnable(
    search: Search, variant: Variant, groups: Sequence[Group]
) -> tuple[list[tuple[Group, ImageEntry]], list[Rejected]]:
    """Devices and images for them whose needs this host meets, and the images whose needs it does not."""
    pairs: list[tuple[Group, ImageEntry]] = []
    rejected: list[Rejected] = []
    for group in groups:
        if search.wish.tensor_parallel not in (None, 1) and not group:
            continue  # a CPU is not several
        for image in images(search.catalogue, search.wish, variant, variant.loaders, group):
            need = unmet(image, search.facts, group[0] if group else None)
            if need is None:
                pairs.append((group, image))
            else:
                rejected.append(_unfit(variant, image, need))
    return pairs, rejected


def _unfit(variant: Variant, image: ImageEntry, need: Unmet) -> Rejected:
    return Rejected(
        image.runtime.value,
        variant.name,
        Method.NONE,
        need.code,
        need.text,
        source=need.source,
        image=image.reference,
    )


def _methods(
    search: Search, variant: Variant, file: FileFacts | None, group: Group, image: ImageEntry
) -> Iterator[Candidate | Rejected]:
    """A candidate for each method that can be had, a rejection for each that was asked for or has a drafter."""
    asked = search.wish.method
    adapter = ADAPTERS[image.runtime]
    for method in _tried(search):
        bare = _candidate(search, variant=variant, file=file, group=group, image=image, method=method)
        if method not in adapter.methods:
            if asked is not None:
                yield bare.reject("method_unsupported", f"{image.runtime.value} ({image.name}) has no {method}")
        elif method is Method.MTP:
            if bare.shape is not None and bare.shape.mtp_layers:
                yield bare
            elif any(_belongs(drafter, variant, method) for drafter in search.entry.drafters):
                yield from _drafted(search, bare)  # a head in a file of its own
            elif asked is not None:
                reason = None if bare.target is None else no_mtp_head(bare.target)
                text = f"{variant.name} has no MTP head" if reason is None else reason.text
                yield bare.reject("no_mtp_head", text, None if reason is None else reason.source)
        elif method in (Method.NONE, Method.NGRAM):
            yield bare
        else:
            yield from _drafted(search, bare)


def _tried(search: Search) -> tuple[Method, ...]:
    """What was asked for; with a drafter that was, its method; else all that `auto` looks for."""
    if search.wish.method is not None:
        return (search.wish.method,)
    if search.wish.drafter is not None:
        return tuple(dict.fromkeys(d.method for d in search.entry.drafters if d.name == search.wish.drafter))
    return (*AUTO, Method.NONE)


def _drafted(search: Search, bare: Candidate) -> Iterator[Candidate | Rejected]:
    """The method with each drafter that there is for it."""
    name = search.wish.drafter
    known = [d for d in search.entry.drafters if _belongs(d, bare.variant, bare.method) and name in (None, d.name)]
    if not known and (search.wish.method is not None or name is not None):
        of = "" if name is None else f" named {name}"
        text = f"no {bare.method} drafter{of} in {bare.variant.format.value} is known for {bare.variant.name}"
        yield bare.reject("no_drafter", text)
    for drafter in known:
        yield _with_drafter(search, bare, drafter)


def _belongs(drafter: Drafter, variant: Variant, method: Method) -> bool:
    return (
        drafter.method is method
        and drafter.format is variant.format
        and (not drafter.variants or variant.name in drafter.variants)
    )


def _with_drafter(search: Search, bare: Candidate, drafter: Drafter) -> Candidate | Rejected:
    file = search.files.get(location(drafter))
    known = file if isinstance(file, FileFacts) else None
    full = _candidate(
        search,
        variant=bare.variant,
        file=bare.target,
        group=bare.devices,
        image=bare.image,
        method=drafter.method,
        drafter=drafter,
        drafter_file=known,
    )
    if isinstance(file, FileProblem):
        return full.reject("drafter_file", file.text if file.hint is None else f"{file.text}; {file.hint}")
    if known is not None and bare.target is not None:
        reason = mismatch(bare.target, known, drafter.method)
        if reason is not None:
            return full.reject(reason.code, reason.text, reason.source)
    return full


def _candidate(
    search: Search,
    *,
    variant: Variant,
    file: FileFacts | None,
    group: Group,
    image: ImageEntry,
    method: Method,
    drafter: Drafter | None = None,
    drafter_file: FileFacts | None = None,
) -> Candidate:
    arch = group[0].arch or "unknown" if group else "cpu"
    version = image.least_version
    known = choosing.best(
        search.catalogue.combinations,
        model=search.entry.name,
        variant=variant.name,
        runtime=image.runtime,
        image=image.name,
        version=version,
        arch=arch,
        method=method,
        drafter="" if drafter is None else drafter.name,
        tensor_parallel=len(group) or 1,
    )
    return Candidate(
        group,
        image,
        variant,
        file,
        method,
        drafter,
        drafter_file,
        known,
        choosing.worth(known, version, search.today),
        search.entry.name,
    )
