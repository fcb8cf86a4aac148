"""What is doubtful about a catalogue that can be read: names that nothing has, proofs that have expired, entries that
can never speak. Pure.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.catalogue import choosing
from orchestrator.catalogue.reading import FIELDS, Layer, name_of
from orchestrator.catalogue.types import Catalogue, Combination
from orchestrator.catalogue.versions import contradictory
from orchestrator.config_problems import did_you_mean
from orchestrator.models import Drafter, ModelEntry, Variant


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is doubtful: `entry` as `KIND NAME`."""

    entry: str
    code: Literal["unknown_name", "expired", "shadowed", "same_files", "no_version", "in_the_future", "drops_nothing"]
    text: str
    hint: str


def check(catalogue: Catalogue, layer: Layer, shipped: Catalogue, today: dt.date) -> tuple[Finding, ...]:
    """All of it, for the catalogue in force. `layer` is what the owner's files say, laid over `shipped`."""
    return (
        *_dropped(layer, shipped),
        *_references(catalogue),
        *_models(catalogue.models),
        *_shadowed(catalogue.combinations),
        *_times(catalogue, today),
    )


def _dropped(layer: Layer, shipped: Catalogue) -> Iterator[Finding]:
    for entry in layer.dropped:
        kind, _, name = entry.partition(" ")
        names = [name_of(e) for e in getattr(shipped, FIELDS[kind])]
        if name not in names:
            yield Finding(entry, "drops_nothing", f"no {kind} of this name ships", did_you_mean(name, names))


def _references(catalogue: Catalogue) -> Iterator[Finding]:
    models = {m.name: m for m in catalogue.models}
    images = [name for i in catalogue.images for name in (i.name, i.reference)]
    for known in catalogue.combinations:
        entry = f"combination {known.id}"
        yield from _named(entry, "image", known.image, images)
        yield from _named(entry, "model", known.model, models)
        about = [models[known.model]] if known.model in models else list(models.values())
        if known.model in models or _exact(known.variant):
            yield from _named(entry, "variant", known.variant, [v.name for m in about for v in m.variants])
            drafters = [d.name for m in about for d in m.drafters]
            yield from _named(entry, "drafter", known.drafter, drafters)
    for restriction in catalogue.restrictions:
        entry = f"restriction {restriction.id}"
        yield from _named(entry, "image", restriction.image, images)
        yield from _named(entry, "model", restriction.model, models)
    for model in catalogue.models:
        if model.image is not None and model.image not in images and "/" not in model.image:
            hint = did_you_mean(model.image, images)
            yield Finding(f"model {model.name}", "unknown_name", f"there is no image {model.image!r}", hint)
        variants = [v.name for v in model.variants]
        for drafter in model.drafters:
            for name in drafter.variants:
                yield from _named(f"model {model.name}", f"variant of drafter {drafter.name}:", name, variants)


def _named(entry: str, what: str, name: str, known: Sequence[str] | dict[str, ModelEntry]) -> Iterator[Finding]:
    if _exact(name) and name not in known:
        yield Finding(entry, "unknown_name", f"there is no {what} {name!r}", did_you_mean(name, known))


def _exact(name: str) -> bool:
    return bool(name) and not any(sign in name for sign in "*?[")


def _models(models: Sequence[ModelEntry]) -> Iterator[Finding]:
    seen: dict[tuple[str, str | None, str | None], str] = {}
    for model in models:
        things: list[tuple[str, Variant | Drafter]] = [(f"variant {v.name}", v) for v in model.variants]
        things += [(f"drafter {d.name}", d) for d in model.drafters]
        for what, thing in things:
            if thing.repository is None:
                continue
            where = (thing.repository, thing.file, thing.revision)
            here = f"{what} of {model.name}"
            if where in seen:
                text = f"{what} is {thing.repository}, and so is {seen[where]}"
                yield Finding(f"model {model.name}", "same_files", text, "one of them is another file, or not needed")
            seen.setdefault(where, here)


def _shadowed(combinations: Sequence[Combination]) -> Iterator[Finding]:
    """Those that name exactly what a newer one names: it always speaks instead."""
    best: dict[tuple[object, ...], Combination] = {}
    for known in sorted(combinations, key=lambda c: (c.date, c.id)):
        names = [getattr(known, name) for name in choosing.NAMES]
        key = (known.runtime, known.method, known.tensor_parallel, known.versions, *names)
        older = best.get(key)
        if older is not None:
            text = f"can never speak: {known.id} says the same launches, and is newer"
            yield Finding(f"combination {older.id}", "shadowed", text, "remove it, or name what it is about")
        best[key] = known


def _times(catalogue: Catalogue, today: dt.date) -> Iterator[Finding]:
    for kind in ("combination", "restriction"):
        for entry in getattr(catalogue, FIELDS[kind]):
            name = f"{kind} {entry.id}"
            if contradictory(entry.versions):
                yield Finding(name, "no_version", f"no version is {entry.versions}", "the lower bound comes first")
            if entry.date > today:
                yield Finding(name, "in_the_future", f"is dated {entry.date}", "a date is when somebody saw it")
            if entry.expires is not None and today > entry.expires:
                what = "a proof past its day counts as untried" if kind == "combination" else "it no longer holds"
                yield Finding(name, "expired", f"expired on {entry.expires}: {what}", "look again, and date it anew")
