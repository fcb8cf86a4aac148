"""The ladder: what to climb down to when an engine keeps failing, best first. Pure.

The same engine with safer flags and fewer slots; the same weights drafted for otherwise, at last not at all; then the
best of each other runtime, plain. Who climbs, and when, is `orchestrator.restarting`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from orchestrator.models import Runtime
from orchestrator.plan import Method, Plan, Rejected, Rung
from orchestrator.planner.building import Site, build
from orchestrator.planner.fitting import Fitted
from orchestrator.settings import Settings

MOST = 8
LEAST_BATCH = 1024
"""vLLM's max_num_batched_tokens on the last of the safer rungs; it must exceed what one verification takes."""
_CAPTURES = frozenset({Runtime.VLLM, Runtime.SGLANG})
Built = tuple[Fitted, Plan]


def ladder(site: Site, built: Sequence[Built]) -> tuple[Rung, ...]:
    """The rungs below the best of `built`, which are in order. The first rung is the best itself."""
    if not built:
        return ()
    fitted, best = built[0]
    found = [Rung("plan", "the plan as it is", best)]
    found += _safer(site, fitted, best)
    found += _otherwise([plan for _, plan in built[1:]], best)
    distinct = {rung.plan.digest: rung for rung in reversed(found)}
    return tuple(rung for rung in found if distinct.get(rung.plan.digest) is rung)[:MOST]


def _safer(site: Site, fitted: Fitted, best: Plan) -> Iterator[Rung]:
    """The same with flags that crash less; each keeps what was given up before."""
    step, seen = fitted, {best.digest}
    for change, text, settings in _flags(fitted):
        settled = settings.over(step.settings)
        demand = replace(
            step.demand, eager=settled.eager or step.demand.eager, batch=settled.batch or step.demand.batch
        )
        step = replace(step, settings=settled, demand=demand)
        plan = build(site, step)
        if not isinstance(plan, Rejected) and plan.digest not in seen:
            seen.add(plan.digest)
            yield Rung(change, text, plan)
    if fitted.parallel > 1:
        fewer = fitted.parallel // 2
        plan = build(site, _with_slots(step, fewer))
        if not isinstance(plan, Rejected):
            slots = "1 slot" if fewer == 1 else f"{fewer} slots"
            yield Rung("fewer_slots", f"{slots} instead of {fitted.parallel}", plan)


def _with_slots(fitted: Fitted, parallel: int) -> Fitted:
    """The same with fewer sequences at once, each as long as before. It takes no more memory than before, which is
    what stays promised where a forecast for fewer would say less."""
    return replace(fitted, parallel=parallel, demand=fitted.demand.sized(fitted.context, parallel))


def _flags(fitted: Fitted) -> list[tuple[str, str, Settings]]:
    """Flags that crash less: code, words, and what is settled."""
    candidate, steps = fitted.candidate, list[tuple[str, str, Settings]]()
    if candidate.image.runtime not in _CAPTURES:
        return steps
    eager = fitted.demand.eager
    # the DFlash pass of vLLM has no piecewise graphs
    if candidate.image.runtime is Runtime.VLLM and not eager and candidate.method is not Method.DFLASH:
        steps.append(("piecewise_graphs", "CUDA graphs of single pieces only", Settings(graphs="piecewise")))
    if not eager:
        steps.append(("eager", "no CUDA graphs", Settings(eager=True)))
    lookahead = (fitted.draft_tokens + 1) * fitted.parallel
    if candidate.image.runtime is Runtime.VLLM and fitted.demand.batch > LEAST_BATCH > lookahead:
        steps.append(("less_batch", f"{LEAST_BATCH} tokens computed at once", Settings(batch=LEAST_BATCH)))
    return steps


def _otherwise(others: Sequence[Plan], best: Plan) -> Iterator[Rung]:
    """Other methods of the same engine, plain last; then what else there is, one for each runtime and plain.

    An engine that fails without drafting does not get better with it.
    """
    same = [p for p in others if (p.variant, p.image, p.devices) == (best.variant, best.image, best.devices)]
    same = [p for p in same if best.method is not Method.NONE or p.method is Method.NONE]
    for plan in sorted(same, key=lambda p: p.method is Method.NONE):
        yield Rung(f"method_{plan.method}", _drafted(plan), plan)
    runtimes = {best.runtime}
    for plan in [p for p in others if p.method is Method.NONE] + [p for p in others if p.method is not Method.NONE]:
        if plan.runtime not in runtimes:
            runtimes.add(plan.runtime)
            yield Rung("other_runtime", f"{plan.runtime} with {plan.variant}, {_drafted(plan)}", plan)


def _drafted(plan: Plan) -> str:
    return "no speculation" if plan.method is Method.NONE else f"drafted by {plan.method}"
