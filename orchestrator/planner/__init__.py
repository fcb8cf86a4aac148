"""The planner: which of all that could be launched is launched, at what size, and why not the rest. Pure.

    filter (candidates) -> fit (fitting) -> score (here) -> build (building)

The same inputs give the same plan and digest. Host names, and anything else that does not
launch, change nothing.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hosts.facts import HostFacts
from orchestrator.catalogue.types import Catalogue
from orchestrator.file_facts import Files
from orchestrator.models import ModelEntry
from orchestrator.plan import Evidence, Method, Plan, Planned, Reason, Rejected
from orchestrator.planner.building import Site, build, default_threads, resolve
from orchestrator.planner.candidates import AUTO, Candidate, Search, enumerate_all
from orchestrator.planner.fitting import TIGHT, Fitted, fit
from orchestrator.planner.wishes import Preferences

__all__ = ["Preferences", "default_threads", "ladder", "plan", "resolve", "without_speculation"]

STORE = "/var/lib/outrider/models"
MOST_ALTERNATIVES = 16
MOST_TURNED_DOWN = 4

UNTRIED = 0.8
"""What an untried combination's expected speed is multiplied with: it may not work, and is tried all the same."""

GAIN: Mapping[Method, float] = {
    Method.DFLASH: 2.0,
    Method.DSPARK: 1.9,
    Method.EAGLE3: 1.7,
    Method.MTP: 1.5,
    Method.DRAFT: 1.3,
    Method.NGRAM: 1.05,
    Method.NONE: 1.0,
}
"""Single-stream decode next to no speculation, where nothing is known of the combination."""


def plan(
    entry: ModelEntry,
    facts: HostFacts,
    catalogue: Catalogue,
    files: Files,
    *,
    what_if: Preferences | Mapping[str, Any] | None = None,
    defaults: Preferences | None = None,
    store: str = STORE,
    today: dt.date | None = None,
) -> Planned:
    """The best plan for this model on this host, the ranked rest, and what was turned down.

    `files` are what is known of the files that the entry names (`orchestrator.model_files`);
    an entry absent from it is planned from the catalogue's sizes. `what_if` wins over the
    entry's wishes and those over `defaults`. `today` lets a proof expire. Raises `UsageError`
    for a what-if that is none; everything else is in the answer.
    """
    asked = what_if if isinstance(what_if, Preferences) else Preferences.from_what_if(what_if)
    wish = asked.over(Preferences.of(entry)).over(defaults or Preferences())
    candidates, rejected = enumerate_all(Search(entry, facts, catalogue, files, wish, today))
    site = Site(entry, facts, store, wish)
    built: list[tuple[Fitted, Plan]] = []
    for candidate in candidates:
        outcome = _one(site, candidate)
        if isinstance(outcome, Rejected):
            rejected.append(outcome)
        else:
            built.append(outcome)
    order = {variant.name: position for position, variant in enumerate(entry.variants)}
    built.sort(key=lambda pair: _rank(pair[0], order))
    turned_down = _turned_down(rejected)
    built = [(fitted, replace(p, reasons=(*p.reasons, *turned_down))) for fitted, p in built]
    plans = list({p.digest: p for _, p in reversed(built)}.values())[::-1]
    best = plans[0] if plans else None
    return Planned(best, tuple(plans[1 : 1 + MOST_ALTERNATIVES]), tuple(dict.fromkeys(rejected)))


def _turned_down(rejected: list[Rejected]) -> tuple[Reason, ...]:
    """What would have been faster and does not fit or pair, for whoever wonders why it was not taken."""
    return tuple(
        Reason("turned_down", f"{r.runtime} {r.variant} with {r.drafter}: {r.text}", r.source)
        for r in rejected
        if r.drafter is not None and (r.code in ("too_big", "too_many_slots") or r.code.startswith("drafter_"))
    )[:MOST_TURNED_DOWN]


def _one(site: Site, candidate: Candidate) -> tuple[Fitted, Plan] | Rejected:
    if candidate.evidence is Evidence.REFUTED and site.wish.method is None and candidate.known is not None:
        text = f"refuted {candidate.known.date.isoformat()}: {candidate.known.note or 'known not to work or to pay'}"
        return candidate.reject("refuted", text, candidate.known.source)
    fitted = fit(candidate, site.facts, site.wish)
    if isinstance(fitted, Rejected):
        return fitted
    built = build(site, fitted)
    return built if isinstance(built, Rejected) else (fitted, built)


def score(fitted: Fitted) -> float:
    """Expected single-stream speed next to llama.cpp without speculation, lowered for little context."""
    candidate = fitted.candidate
    known = candidate.known
    gain = GAIN[candidate.method] if known is None or known.gain is None else known.gain
    room = 1.0 if fitted.context >= TIGHT else 0.7 if 2 * fitted.context >= TIGHT else 0.4
    longest = None if candidate.shape is None else candidate.shape.max_context
    if longest is not None and fitted.context >= longest:
        room = 1.0
    trust = 1.0 if candidate.evidence is Evidence.PROVEN else UNTRIED
    return candidate.image.speed * gain * room * trust


def _rank(fitted: Fitted, order: Mapping[str, int]) -> tuple[object, ...]:
    """What can start now before what must be fetched first; then the score; the rest makes the order total."""
    candidate = fitted.candidate
    missing = candidate.target is None or (candidate.drafter is not None and candidate.drafter_file is None)
    methods = (*AUTO, Method.NONE, Method.NGRAM)
    return (
        missing,
        candidate.evidence is Evidence.REFUTED,
        -round(score(fitted), 9),
        order[candidate.variant.name],
        methods.index(candidate.method),
        candidate.image.name,
        "" if candidate.drafter is None else candidate.drafter.name,
        "" if candidate.device is None else candidate.device.pci,
    )


def without_speculation(
    running: Plan,
    entry: ModelEntry,
    facts: HostFacts,
    catalogue: Catalogue,
    files: Files,
    *,
    defaults: Preferences | None = None,
    store: str = STORE,
) -> Planned:
    """Plan the same model, variant, runtime, image and context as `running`, with method `none`.

    Sequences are free to be more, for a drafter's limit no longer holds. Since `running` may have
    a resolved image, the image is pinned only where the entry itself names one.
    """
    pinned = Preferences(method=Method.NONE, variant=running.variant, context=running.context, image=entry.image)
    bare = entry.model_copy(
        update={"speculation": entry.speculation.model_copy(update={"drafter": None, "draft_tokens": None})}
    )
    found = plan(bare, facts, catalogue, files, what_if=pinned, defaults=defaults, store=store)
    same = [p for p in (found.plan, *found.alternatives) if p is not None and _same_engine(p, running)]
    return replace(found, plan=same[0] if same else None, alternatives=tuple(same[1:]))


def _same_engine(one: Plan, other: Plan) -> bool:
    return one.runtime == other.runtime and one.devices == other.devices and one.profile == other.profile


def ladder(planned: Planned) -> tuple[Plan, ...]:
    """Rungs to climb down when an engine keeps failing, best first: the plan; the same weights and
    image drafted for otherwise; without speculation; then other weights or engines, plain ones first."""
    first = planned.plan
    if first is None:
        return ()

    def rung(p: Plan) -> int:
        plain = p.method is Method.NONE
        if p.variant == first.variant and p.image == first.image and p.devices == first.devices:
            return 1 if plain else 0
        return 2 if plain else 3

    return (first, *sorted(planned.alternatives, key=rung))
