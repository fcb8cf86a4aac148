"""What `outrider model ls` shows of each variant's and drafter's weights. Blocking."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from orchestrator.file_facts import FileFacts, FileProblem, Files, location, mismatch
from orchestrator.models import Drafter, ModelEntry, Variant
from orchestrator.store_files import sidecar
from orchestrator.views import WeightsFacts, WeightsView
from orchestrator.weights import shelf
from orchestrator.weights.choosing import source_of


def shown(entry: ModelEntry, store: Path, files: Files) -> tuple[WeightsView, ...]:
    """Variants first, then drafters."""
    found = []
    for kind, things in (("variant", entry.variants), ("drafter", entry.drafters)):
        for thing in things:
            source = source_of(thing)
            held = None if source is None else shelf.find(store, source)
            facts = files.get(location(thing))
            problem = facts.text if isinstance(facts, FileProblem) else None
            view = WeightsView(
                name=thing.name,
                kind=kind,
                format=thing.format.value,
                state="problem" if problem else "missing" if facts is None else "here",
                repository=thing.repository,
                revision=None if source is None else shelf.pinned(store, source) or source.revision,
                path=None if facts is None or isinstance(facts, FileProblem) else facts.path,
                bytes=thing.weight_bytes if facts is None or isinstance(facts, FileProblem) else facts.size,
                problem=problem,
                facts=_facts(facts, entry, thing, files) if isinstance(facts, FileFacts) else None,
            )
            found.append(_pulled(view, held) if held is not None else _placed(view))
    return tuple(found)


def _facts(facts: FileFacts, entry: ModelEntry, thing: Variant | Drafter, files: Files) -> WeightsFacts:
    """For a person: what it is, and of a drafter which variants it pairs with."""
    declared, shape = facts.drafter, facts.shape
    return WeightsFacts(
        architecture=facts.architecture,
        quantisation=facts.quantisation,
        context=None if shape is None else shape.max_context,
        layers=None if shape is None else shape.layers,
        mtp_head="here" if facts.nextn_layers else "missing" if facts.mtp_declared else "none",
        chat_template=facts.chat_template,
        vision_bytes=None if facts.portions is None else facts.portions.vision or None,
        method=None if declared is None else declared.method.value,
        draft_tokens=None if declared is None else declared.longest,
        pairs=_pairs(facts, entry, thing, files) if isinstance(thing, Drafter) else {},
        unclear=facts.unclear,
    )


def _pairs(facts: FileFacts, entry: ModelEntry, drafter: Drafter, files: Files) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for variant in entry.variants:
        target = files.get(location(variant))
        if not isinstance(target, FileFacts) or (drafter.variants and variant.name not in drafter.variants):
            continue
        if target.format is facts.format:
            reason = mismatch(target, facts, drafter.method)
            found[variant.name] = None if reason is None else reason.text
    return found


def _pulled(view: WeightsView, held: shelf.Held) -> WeightsView:
    files = [held.record.files[name] for name in held.selection.files]
    return replace(
        view,
        revision=held.commit,
        bytes=held.size,
        origin="cache" if held.selection.outside is not None else "+".join(sorted({f.origin for f in files})),
        checked_at=min(file.checked_at for file in files),
        checked_ok=all(file.ok for file in files),
    )


def _placed(view: WeightsView) -> WeightsView:
    if view.path is None:
        return view
    have = sidecar(Path(view.path))
    return replace(view, origin="yours" if have is None else "added", checked_ok=None if have is None else True)
