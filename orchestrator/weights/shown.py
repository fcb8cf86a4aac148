"""What `outrider model ls` shows of each variant's and drafter's weights. Blocking."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from orchestrator.file_facts import FileProblem, Files, location
from orchestrator.models import ModelEntry
from orchestrator.store_files import sidecar
from orchestrator.views import WeightsView
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
            )
            found.append(_pulled(view, held) if held is not None else _placed(view))
    return tuple(found)


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
