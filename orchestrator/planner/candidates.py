"""Which combinations exist at all: device x image x variant x method x drafter, and why the rest does not."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hosts.facts import Accelerator, HostFacts
from orchestrator.catalogue.types import Catalogue, Combination, ImageEntry, in_range
from orchestrator.file_facts import FileFacts, FileProblem, Files, location, mismatch
from orchestrator.image_needs import Unmet, unmet
from orchestrator.models import Drafter, Format, ModelEntry, Runtime, Shape, Variant
from orchestrator.plan import Evidence, Method, Rejected
from orchestrator.planner.wishes import Preferences
from orchestrator.runtimes import ADAPTERS

AUTO = (Method.DFLASH, Method.DSPARK, Method.EAGLE3, Method.MTP, Method.DRAFT)
"""What `auto` looks for, best first; then `none`. n-gram lookup pays only for some texts: on request."""
DEVICE_UNNAMED = "device_unnamed"
"""The code of a GPU that no container can be given (yet)."""
_LOADS = {Format.GGUF: (Runtime.LLAMA_CPP,), Format.SAFETENSORS: (Runtime.VLLM, Runtime.SGLANG)}


@dataclass(frozen=True, slots=True)
class Candidate:
    """One thing that could be launched. `device` None is the CPU; facts are None for files not read."""

    device: Accelerator | None
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
    tensor_parallel: int = 1

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


@dataclass(frozen=True, slots=True)
class Search:
    """All that enumeration looks at."""

    entry: ModelEntry
    facts: HostFacts
    catalogue: Catalogue
    files: Files
    wish: Preferences
    today: dt.date | None


def enumerate_all(search: Search) -> tuple[list[Candidate], list[Rejected]]:
    """Candidates in a fixed order, and what was turned down on the way."""
    found: list[Candidate] = []
    rejected: list[Rejected] = []
    devices, unfit_devices = _devices(search)
    for variant in search.entry.variants:
        if search.wish.variant not in (None, variant.name):
            continue
        file = search.files.get(location(variant))
        if isinstance(file, FileProblem):
            text = file.text if file.hint is None else f"{file.text}; {file.hint}"
            rejected.append(_early(variant, None, Method.NONE, "model_file", text))
            continue
        rejected.extend(_early(variant, None, Method.NONE, code, text) for code, text in unfit_devices)
        pairs, unfit = _runnable(search, variant, devices)
        rejected.extend(unfit)
        if not pairs and not unfit and devices:
            rejected.append(_early(variant, None, Method.NONE, "no_image", _no_image(variant, devices)))
        for device, image in pairs:
            for outcome in _methods(search, variant, file, device, image):
                if isinstance(outcome, Rejected):
                    rejected.append(outcome)
                else:
                    found.append(outcome)
    if search.wish.variant is not None and not any(v.name == search.wish.variant for v in search.entry.variants):
        names = ", ".join(v.name for v in search.entry.variants)
        text = f"{search.entry.name} has no variant {search.wish.variant!r}; it has {names}"
        rejected.append(Rejected("", search.wish.variant, Method.NONE, "no_variant", text))
    return found, list(dict.fromkeys(rejected))


def _early(variant: Variant, runtime: Runtime | None, method: Method, code: str, text: str) -> Rejected:
    named = runtime or (variant.runtimes or _LOADS[variant.format])[0]
    return Rejected(named.value, variant.name, method, code, text)


def _runnable(
    search: Search, variant: Variant, devices: Sequence[Accelerator | None]
) -> tuple[list[tuple[Accelerator | None, ImageEntry]], list[Rejected]]:
    """Devices and images for them whose needs this host meets, and the images whose needs it does not."""
    pairs: list[tuple[Accelerator | None, ImageEntry]] = []
    rejected: list[Rejected] = []
    for device in devices:
        for image in _images(search, variant, device):
            need = unmet(image, search.facts, device)
            if need is None:
                pairs.append((device, image))
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


def _devices(search: Search) -> tuple[Sequence[Accelerator | None], Sequence[tuple[str, str]]]:
    """The accelerators that can be used, and a code and a sentence about those that cannot.

    The CPU only where there is no accelerator, or when its image is asked for by name: a model
    that silently runs on the CPU of a GPU host is a bug that looks like slowness. A container that is
    given no device does just that, so a GPU without a name to give is none.
    """
    wanted = _named_image(search)
    if not search.facts.accelerators or (wanted is not None and wanted.vendor is None):
        return (None,), ()
    gone = [d for d in search.facts.accelerators if d.details.get("health") == "lost"]
    unnamed = [d for d in search.facts.accelerators if not d.devices and d not in gone]
    alive = tuple(d for d in search.facts.accelerators if d not in gone and d not in unnamed)
    why: list[tuple[str, str]] = []
    if gone:
        why.append(("device_lost", f"lost until the machine is restarted: {_listed(gone)}"))
    if unnamed:
        text = f"no container can be given {_listed(unnamed)}: it has no device node or CDI name"
        why.append((DEVICE_UNNAMED, text))
    return alive, why


def _listed(devices: Sequence[Accelerator]) -> str:
    return ", ".join(f"{d.name or d.vendor} at {d.pci}" for d in devices)


def _named_image(search: Search) -> ImageEntry | None:
    if search.wish.image is None:
        return None
    for image in search.catalogue.images:
        if search.wish.image in (image.name, image.reference):
            return image
    return None


def _images(search: Search, variant: Variant, device: Accelerator | None) -> Iterator[ImageEntry]:
    vendor, arch = (None, None) if device is None else (device.vendor, device.arch)
    runtimes = variant.runtimes or _LOADS[variant.format]
    named = _named_image(search)
    fitting = [
        image
        for image in search.catalogue.images
        if image.runtime in runtimes
        and image.runtime in ADAPTERS
        and search.wish.runtime in (None, image.runtime)
        and image.serves(vendor, arch)
    ]
    if search.wish.image is None:
        yield from fitting
    elif named is not None:
        yield from (image for image in fitting if image is named)
    elif fitting:
        # an image of the user's own: taken to be like the first that would have done
        like = fitting[0]
        # ... but what that one needs is no word about this one
        update: dict[str, object] = dict.fromkeys(
            ("version", "digest", "driver", "cuda", "kernel", "compressed_bytes", "size_bytes", "needs_source")
        )
        update |= {"name": "custom", "reference": search.wish.image, "machine": (), "source": "named by the user"}
        yield like.model_copy(update=update)


def _no_image(variant: Variant, devices: Sequence[Accelerator | None]) -> str:
    where = ", ".join("the CPU" if d is None else f"{d.vendor} {d.arch or 'of unknown architecture'}" for d in devices)
    return f"no image runs {variant.format.value} weights of {variant.name} on {where}"


def _methods(
    search: Search, variant: Variant, file: FileFacts | None, device: Accelerator | None, image: ImageEntry
) -> Iterator[Candidate | Rejected]:
    """A candidate for each method that can be had, a rejection for each that was asked for or has a drafter."""
    asked = search.wish.method
    adapter = ADAPTERS[image.runtime]
    for method in (*AUTO, Method.NONE) if asked is None else (asked,):
        bare = _candidate(search, variant=variant, file=file, device=device, image=image, method=method)
        if method not in adapter.methods or (image.methods and method not in image.methods):
            if asked is not None:
                yield bare.reject("method_unsupported", f"{image.runtime.value} ({image.name}) has no {method}")
        elif method is Method.MTP:
            if bare.shape is not None and bare.shape.mtp_layers:
                yield bare
            elif asked is not None:
                yield bare.reject("no_mtp_head", f"{variant.name} has no MTP head")
        elif method in (Method.NONE, Method.NGRAM):
            yield bare
        else:
            yield from _drafted(search, bare)


def _drafted(search: Search, bare: Candidate) -> Iterator[Candidate | Rejected]:
    """The method with each drafter that there is for it."""
    name = search.wish.drafter
    known = [d for d in search.entry.drafters if _belongs(d, bare.variant, bare.method) and name in (None, d.name)]
    if not known and search.wish.method is not None:
        text = f"no {bare.method} drafter in {bare.variant.format.value} is known for {bare.variant.name}"
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
        device=bare.device,
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
    device: Accelerator | None,
    image: ImageEntry,
    method: Method,
    drafter: Drafter | None = None,
    drafter_file: FileFacts | None = None,
) -> Candidate:
    arch = "cpu" if device is None else device.arch or "unknown"
    known = next(
        (
            c
            for c in search.catalogue.combinations
            if c.covers(
                model=search.entry.name,
                variant=variant.name,
                runtime=image.runtime,
                image=image.name,
                arch=arch,
                method=method,
                drafter="" if drafter is None else drafter.name,
            )
        ),
        None,
    )
    return Candidate(
        device,
        image,
        variant,
        file,
        method,
        drafter,
        drafter_file,
        known,
        _evidence(known, image, search.today),
        search.entry.name,
    )


def _evidence(known: Combination | None, image: ImageEntry, today: dt.date | None) -> Evidence:
    """A proof counts for its versions and until it expires; a refutation for its versions."""
    if known is None or not in_range(image.version, known.versions):
        return Evidence.UNTRIED
    expired = known.expires is not None and today is not None and today > known.expires
    return Evidence.UNTRIED if expired and known.evidence is Evidence.PROVEN else known.evidence
