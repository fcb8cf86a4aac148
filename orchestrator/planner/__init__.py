"""The planner: which of all that could be launched is launched, at what size, and why not the rest. Pure.

    filter (candidates, terms) -> fit (fitting, sizes, drafts) -> build (building)
    -> score (scoring, priors) -> rank (ranking) -> ladder (rungs)

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
from orchestrator.measured import NOTHING, Measured
from orchestrator.models import ModelEntry
from orchestrator.plan import Evidence, Method, Plan, Planned, Reason, Rejected
from orchestrator.planner import giving_up
from orchestrator.planner.building import Site, build, default_threads, resolve
from orchestrator.planner.candidates import Candidate, Search, enumerate_all
from orchestrator.planner.changes import changes
from orchestrator.planner.fitting import Fitted, fit
from orchestrator.planner.places import named_image, of_host
from orchestrator.planner.placing import place
from orchestrator.planner.ranking import Ranking
from orchestrator.planner.rungs import ladder
from orchestrator.planner.scoring import ran
from orchestrator.planner.terms import Known, prepared
from orchestrator.planner.unsupported import turned_down
from orchestrator.planner.wishes import Preferences

__all__ = ["Preferences", "changes", "default_threads", "plan", "resolve", "without_speculation"]

STORE = "/var/lib/outrider/models"
MOST_ALTERNATIVES = 16
MOST_TURNED_DOWN = 4


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
    measured: Measured = NOTHING,
) -> Planned:
    """The best plan for this model on this host, the ranked rest, and what was turned down.

    `files` are what is known of the files that the entry names (`orchestrator.model_files`);
    an entry absent from it is planned from the catalogue's sizes. `what_if` wins over the
    entry's wishes and those over `defaults`. `today` lets proofs and known bugs expire. Raises `UsageError`
    for a what-if that is none; everything else is in the answer. `measured` is what this host knows
    from running: it comes before known combinations, and those before priors.
    """
    refused = turned_down(entry, catalogue, what_if)
    if refused is not None:
        return refused
    asked = what_if if isinstance(what_if, Preferences) else Preferences.from_what_if(what_if)
    wish = asked.over(Preferences.of(entry)).over(defaults or Preferences())
    places = of_host(facts, named_image(catalogue, wish))
    bugs = prepared(r for r in catalogue.restrictions if not (today and r.expires and r.expires < today))
    site = Site(entry, facts, store, wish, measured)
    search = Search(entry, facts, catalogue, files, wish, today, places)
    built, rejected = _look(search, site, bugs)
    fitting = {fitted.candidate.variant.name for fitted, _ in built}
    if not built and wish.variant is not None:
        free = replace(wish, variant=None)
        found, _ = _look(replace(search, wish=free), replace(site, wish=free), bugs)
        fitting = {fitted.candidate.variant.name for fitted, _ in found}
    rejected = giving_up.with_variants(rejected, [v.name for v in entry.variants if v.name in fitting])
    order = {variant.name: position for position, variant in enumerate(entry.variants)}
    ranking = Ranking.of(built, wish, measured, order)
    built.sort(key=lambda pair: ranking.key(*pair))
    built = ranking.told(list({pair[1].digest: pair for pair in reversed(built)}.values())[::-1])
    if not built:
        return Planned(None, (), tuple(rejected))
    rungs = ladder(site, built)
    best = replace(built[0][1], reasons=(*built[0][1].reasons, *_turned_down(rejected)))
    rest = tuple(p for _, p in built[1 : 1 + MOST_ALTERNATIVES])
    return Planned(best, rest, tuple(rejected), rungs)


def _look(search: Search, site: Site, bugs: Known) -> tuple[list[tuple[Fitted, Plan]], list[Rejected]]:
    """Everything that could be launched, in no order yet, and everything that could not."""
    candidates, rejected = enumerate_all(search)
    built: list[tuple[Fitted, Plan]] = []
    for candidate in candidates:
        outcome = place(candidate, search.places, search.wish, lambda c, brief: _one(site, c, bugs, brief=brief))
        if isinstance(outcome, Rejected):
            rejected.append(outcome)
        else:
            built += outcome
    return built, list(dict.fromkeys(rejected))


def _turned_down(rejected: list[Rejected]) -> tuple[Reason, ...]:
    """What would have been faster and does not fit or pair, for whoever wonders why it was not taken."""
    return tuple(
        Reason("turned_down", f"{r.runtime} {r.variant} with {r.drafter}: {r.text}", r.source)
        for r in rejected
        if r.drafter is not None
    )[:MOST_TURNED_DOWN]


def _one(site: Site, candidate: Candidate, bugs: Known, *, brief: bool) -> tuple[Fitted, Plan] | Rejected:
    wrong = site.measured.refuted.get(ran(candidate))
    if wrong is not None:  # whoever asked for it: what answers wrongly is of no use to anybody
        text = f"refuted here {wrong.seen}: {wrong.text}; `outrider measured rm {candidate.model}` has it tried again"
        return replace(candidate.reject("quarantined", text, wrong.source), evidence=Evidence.REFUTED)
    if candidate.evidence is Evidence.REFUTED and site.wish.method is None and candidate.known is not None:
        text = f"refuted {candidate.known.date.isoformat()}: {candidate.known.note or 'known not to work or to pay'}"
        return candidate.reject("refuted", text, candidate.known.source)
    fitted = fit(candidate, site.facts, site.wish, bugs, site.measured, brief=brief)
    if isinstance(fitted, Rejected):
        return fitted
    built = build(site, fitted)
    return built if isinstance(built, Rejected) else (fitted, built)


def without_speculation(
    running: Plan,
    entry: ModelEntry,
    facts: HostFacts,
    catalogue: Catalogue,
    files: Files,
    *,
    defaults: Preferences | None = None,
    store: str = STORE,
    measured: Measured = NOTHING,
) -> Planned:
    """Plan the same model, variant, runtime, image and context as `running`, with method `none`.

    Sequences are free to be more, for a drafter's limit no longer holds. Since `running` may have
    a resolved image, the image is pinned only where the entry itself names one.
    """
    shared = running.expected_memory.devices
    pinned = Preferences(
        method=Method.NONE,
        variant=running.variant,
        context=running.context,
        image=entry.image,
        tensor_parallel=shared if shared > 1 else entry.tensor_parallel,
    )
    bare = entry.model_copy(
        update={"speculation": entry.speculation.model_copy(update={"drafter": None, "draft_tokens": None})}
    )
    found = plan(bare, facts, catalogue, files, what_if=pinned, defaults=defaults, store=store, measured=measured)
    same = [p for p in (found.plan, *found.alternatives) if p is not None and _same_engine(p, running)]
    return replace(found, plan=same[0] if same else None, alternatives=tuple(same[1:]))


def _same_engine(one: Plan, other: Plan) -> bool:
    return one.runtime == other.runtime and one.devices == other.devices and one.profile == other.profile
