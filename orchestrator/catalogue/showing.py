"""All that the catalogue knows of one thing, and which of its entries a filter leaves: values for JSON. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from pydantic import BaseModel

from orchestrator.catalogue import choosing
from orchestrator.catalogue.reading import FIELDS, name_of
from orchestrator.catalogue.restrictions import Restriction
from orchestrator.catalogue.types import Catalogue, Combination
from orchestrator.config_problems import nearest
from orchestrator.errors import NotFound
from orchestrator.kinds import Backend
from orchestrator.models import ModelEntry, Runtime, Shape
from orchestrator.plan import Evidence, Method


@dataclass(frozen=True, slots=True)
class Filter:
    """What entries must be about. None asks for nothing; `expired` for those whose day has passed."""

    model: str | None = None
    runtime: str | None = None
    arch: str | None = None
    method: Method | None = None
    evidence: Evidence | None = None
    expired: bool = False

    def leaves(self, entry: BaseModel, today: dt.date) -> bool:
        """Whether an entry passes; what an entry cannot say is not asked of it, but evidence and expiry are."""
        runtime = getattr(entry, "runtime", None)
        methods = getattr(entry, "methods", None) or (getattr(entry, "method", None),)
        if self.expired and not (getattr(entry, "expires", None) and today > getattr(entry, "expires", today)):
            return False
        if self.evidence is not None and getattr(entry, "evidence", None) is not self.evidence:
            return False
        if isinstance(entry, ModelEntry):
            about = self.model is None or self.model in (entry.name, *entry.aliases)
            return about and (self.runtime is None or self.runtime in _runtimes(entry))
        pattern = getattr(entry, "model", None)
        return (
            (self.model is None or pattern is None or fnmatchcase(self.model, pattern))
            and (self.runtime is None or runtime is None or runtime == self.runtime)
            and (self.method is None or methods == (None,) or self.method in methods)
            and (self.arch is None or _about_arch(getattr(entry, "arch", ()), self.arch))
        )


def _about_arch(patterns: str | tuple[str, ...], arch: str) -> bool:
    many = (patterns,) if isinstance(patterns, str) else patterns
    return not many or any(fnmatchcase(arch, pattern) for pattern in many)


def listed(
    catalogue: Catalogue, kinds: Iterable[str], wanted: Filter, today: dt.date
) -> dict[str, list[dict[str, Any]]]:
    """Entries of these kinds (`models`, `images`, ...), with where each comes from."""
    field_kind = {field: kind for kind, field in FIELDS.items()}
    return {
        field: [
            document(catalogue, field_kind[field], entry, today)
            for entry in getattr(catalogue, field)
            if wanted.leaves(entry, today)
        ]
        for field in kinds
    }


def document(catalogue: Catalogue, kind: str, entry: BaseModel, today: dt.date) -> dict[str, Any]:
    """One entry: its keys, its kind and origin; a combination also with what it counts today."""
    name = name_of(entry)
    where = catalogue.origins.get(name) if kind == "model" else catalogue.sources.get(f"{kind} {name}", "catalogue")
    data = {**entry.model_dump(mode="json", exclude_none=True), "kind": kind, "origin": where}
    if isinstance(entry, Combination) and choosing.expired(entry, today):
        data["expired"] = True
    return data


def find(catalogue: Catalogue, name: str) -> tuple[str, BaseModel]:
    """The kind and entry of a name, alias, reference or id; models first. Raises `NotFound` with the nearest."""
    model = catalogue.model(name)
    if model is not None:
        return "model", model
    for image in catalogue.images:
        if name in (image.name, image.reference):
            return "image", image
    for kind in ("combination", "restriction", "handled"):
        for entry in getattr(catalogue, FIELDS[kind]):
            if entry.id == name:
                return kind, entry
    runtime = catalogue.unsupported(name)
    if runtime is not None:
        return "runtime", runtime
    entries = [entry for field in FIELDS.values() for entry in getattr(catalogue, field)]
    near = nearest(name, [n for e in entries for n in (*getattr(e, "aliases", ()), name_of(e))])
    meant = "" if near is None else f"did you mean {near!r}? "
    raise NotFound(f"the catalogue has nothing called {name!r}", hint=f"{meant}`outrider catalog list` shows all")


def about(
    catalogue: Catalogue, name: str, today: dt.date, arches: Mapping[str, str | None] | None = None
) -> dict[str, Any]:
    """Everything known of a thing. For a model: combinations about it and restrictions that can concern it, on
    these architectures (name -> vendor; None: on any)."""
    kind, entry = find(catalogue, name)
    data = document(catalogue, kind, entry, today)
    if kind == "model" and isinstance(entry, ModelEntry):
        data["combinations"] = [
            document(catalogue, "combination", c, today)
            for c in catalogue.combinations
            if fnmatchcase(entry.name, c.model) and (arches is None or any(fnmatchcase(a, c.arch) for a in arches))
        ]
        data["restrictions"] = [
            document(catalogue, "restriction", r, today) for r in catalogue.restrictions if concerns(r, entry, arches)
        ]
    elif kind == "image":
        data["combinations"] = [
            document(catalogue, "combination", c, today)
            for c in catalogue.combinations
            if c.runtime == getattr(entry, "runtime", None) and c.image != "*" and fnmatchcase(name_of(entry), c.image)
        ]
        data["restrictions"] = [
            document(catalogue, "restriction", r, today)
            for r in catalogue.restrictions
            if r.image != "*" and fnmatchcase(name_of(entry), r.image)
        ]
    return data


def concerns(r: Restriction, model: ModelEntry, arches: Mapping[str, str | None] | None) -> bool:
    """Whether a restriction can hold for some launch of this model, on one of these architectures."""
    if not fnmatchcase(model.name, r.model) or r.runtime not in _runtimes(model):
        return False
    if r.methods and not set(r.methods) & _methods(model):
        return False
    if r.drafter is not None and not any(fnmatchcase(d.name, r.drafter) for d in model.drafters):
        return False
    if arches is not None:
        if r.arch and not any(_about_arch(r.arch, arch) for arch in arches):
            return False
        if r.backend and not {b for vendor in arches.values() for b in _BACKENDS[vendor]} & set(r.backend):
            return False
    return any(
        (r.format in (None, v.format))
        and (r.quantisation is None or fnmatchcase(v.quantisation, r.quantisation))
        and _shaped(r, v.shape)
        for v in model.variants
    )


_BACKENDS: Mapping[str | None, tuple[Backend, ...]] = {
    None: (Backend.CPU,),
    "nvidia": (Backend.CUDA, Backend.VULKAN),
    "amd": (Backend.ROCM, Backend.VULKAN),
}


def _shaped(r: Restriction, shape: Shape | None) -> bool:
    if shape is None:
        return True
    facts = (
        (r.hybrid, shape.linear_layers > 0),
        (r.mla, shape.kv_lora_rank is not None),
        (r.moe, (shape.experts or 0) > 1),
    )
    return all(want is None or want == have for want, have in facts)


def _runtimes(model: ModelEntry) -> set[Runtime]:
    return {runtime for v in model.variants for runtime in v.loaders}


def _methods(model: ModelEntry) -> set[Method]:
    own = {Method.MTP} if any(v.shape is not None and v.shape.mtp_layers for v in model.variants) else set()
    return {Method.NONE, Method.NGRAM, *(d.method for d in model.drafters), *own}
