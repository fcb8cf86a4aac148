"""How large: draft length, context and sequences for a candidate, so that it fits its device and is safe. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hosts.facts import HostFacts
from orchestrator.catalogue.restrictions import Restriction
from orchestrator.kinds import Backend
from orchestrator.memory_fit import Demand, explain, fits, llama_cpp, reserve, vllm
from orchestrator.models import Runtime
from orchestrator.plan import ExpectedMemory, Method, Reason, Rejected
from orchestrator.planner import drafts, giving_up, sizes
from orchestrator.planner.candidates import Candidate
from orchestrator.planner.scoring import TIGHT
from orchestrator.planner.terms import Size, Terms, applicable, eager_of, kv_of, refuses, settle
from orchestrator.planner.wishes import Preferences
from orchestrator.settings import Settings

BATCH_VLLM = 2048
"""max_num_batched_tokens: scratch grows with it; 4096-8192 is the most for 24 GB (club-3090#838)."""
BATCH_LLAMA = 512
DFLASH_SEQUENCES = 8
"""cudaErrorIllegalAddress with DFlash and CUDA graphs at 16-32 requests (z-lab/dflash#146)."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A candidate with its sizes and settings. `demand` is what memory was computed for."""

    candidate: Candidate
    draft_tokens: int
    context: int
    parallel: int
    demand: Demand
    expected: ExpectedMemory
    settings: Settings
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most context and sequences that may be tried, and what that cut off a wish."""

    context: int
    slots: int | None
    reasons: tuple[Reason, ...]


def budget_of(candidate: Candidate, facts: HostFacts) -> int | None:
    """Bytes that a plan may take on the candidate's device; None when the device does not say."""
    device = candidate.device
    if device is None:
        return max(facts.memory.available - reserve(Backend.CPU, unified=False, total=facts.memory.total), 0)
    free = device.memory_free if device.memory_free is not None else device.memory_total
    if free is None:
        return None
    return max(free - reserve(candidate.image.backend, unified=device.unified, total=device.memory_total), 0)


def forecast(candidate: Candidate, demand: Demand, budget: int | None) -> ExpectedMemory:
    """What this will take, by the runtime's own rules."""
    return (vllm if candidate.image.runtime is Runtime.VLLM else llama_cpp)(demand, budget=budget)


def fit(
    candidate: Candidate, facts: HostFacts, wish: Preferences, restrictions: tuple[Restriction, ...] = ()
) -> Fitted | Rejected:
    """The most worthy size that fits and is safe, or why there is none."""
    weights, drafter_bytes = candidate.weights, candidate.drafter_bytes
    if weights is None or drafter_bytes is None:
        return candidate.reject("size_unknown", "the size of its weights is not known", candidate.variant.source)
    known = applicable(restrictions, candidate)
    length, cut = drafts.trained(candidate, wish, drafts.wanted(candidate, wish))
    terms = settle(candidate, wish, known, Size(wish.context, wish.parallel, length, wish.batch))
    length, safe = drafts.safe(length, terms)
    if terms.refused is not None:
        return turned_down(candidate, terms.refused)
    bounds = _bounds(candidate, wish, terms)
    if isinstance(bounds, Rejected):
        return bounds
    search = _Search(candidate, facts, wish, known, length, bounds)
    found = search.run(terms)
    if isinstance(found, Rejected):
        return found
    return replace(found, reasons=(*cut, *safe, *bounds.reasons, *found.reasons))


def turned_down(candidate: Candidate, restriction: Restriction) -> Rejected:
    """The rejection in a restriction's own words."""
    return candidate.reject(restriction.id, restriction.text, restriction.source)


def _bounds(candidate: Candidate, wish: Preferences, terms: Terms) -> Bounds | Rejected:
    """What limits sizes: training, known combinations, restrictions. A wish beyond them is turned down."""
    longest = None if candidate.shape is None else candidate.shape.max_context
    if wish.context is not None and longest is not None and wish.context > longest:
        text = f"{wish.context} tokens are asked for, the model was trained for {longest}"
        return candidate.reject("context_too_long", text)
    reasons: list[Reason] = []
    most = _most_unasked(candidate)
    tried = None if candidate.known is None else candidate.known.context_limit
    limits = [(tried, candidate.known.source)] if tried is not None and candidate.known is not None else []
    strict = terms.most("context")
    limits += [] if strict is None else [(strict[0], strict[1].source)]
    for bound, source in limits:
        if wish.context is not None and wish.context > bound:
            text = f"{wish.context} tokens are asked for, {candidate.method} is known to be safe up to {bound}"
            if wish.method is not candidate.method:
                return candidate.reject("context_limit", text, source)
            reasons.append(Reason("context_risky", f"{text}, and was asked for", source))
        most = min(most, bound)
    slots, source = _slots(candidate, terms)
    if slots is not None and wish.parallel is not None and wish.parallel > slots:
        name = candidate.image.name
        text = f"{name} is safe with {candidate.method} up to {slots} slots, {wish.parallel} are asked for"
        if wish.method is not candidate.method:
            return candidate.reject("too_many_slots", text, source)
        reasons.append(Reason("slots_limited", f"{text}: {slots} are given", source))
    return Bounds(min(most, longest or most), slots, tuple(reasons))


def _most_unasked(candidate: Candidate) -> int:
    if candidate.device is None:
        return sizes.MOST_CPU
    return sizes.MOST_SHARED if candidate.device.unified else sizes.MOST_GPU


def _slots(candidate: Candidate, terms: Terms) -> tuple[int | None, str]:
    """How many sequences are safe with this method in this image, and who says so; None is no limit."""
    found: list[tuple[int, str]] = []
    limit = candidate.image.slots.get(candidate.method)
    if limit is None and candidate.image.runtime is Runtime.VLLM and candidate.method is Method.DFLASH:
        limit = DFLASH_SEQUENCES
    if limit is not None:
        found.append((limit, candidate.image.source))
    strict = terms.most("parallel")
    if strict is not None:
        found.append((strict[0], strict[1].source))
    return min(found) if found else (None, candidate.image.source)


@dataclass(frozen=True, slots=True)
class _Search:
    """Looking for the size of one candidate."""

    candidate: Candidate
    facts: HostFacts
    wish: Preferences
    known: tuple[Restriction, ...]
    length: int
    bounds: Bounds

    def run(self, terms: Terms) -> Fitted | Rejected:
        """Hybrids of vLLM keep their state in 16 bits where in 32 too little context would fit."""
        candidate, wish, shape = self.candidate, self.wish, self.candidate.shape
        hybrid = candidate.image.runtime is Runtime.VLLM and shape is not None and shape.linear_layers > 0
        longest = None if shape is None else shape.max_context
        tight: Fitted | None = None
        for bits in (32, 16) if hybrid else (32,):
            found = self._largest(terms, bits)
            if found is None:
                continue
            if bits == 16 or wish.context is not None or found.context >= min(TIGHT, longest or TIGHT):
                return self._settled(terms, found)
            tight = found
        return self._too_big(terms) if tight is None else self._settled(terms, tight)

    def _largest(self, terms: Terms, bits: int) -> Fitted | None:
        """The most worthy size whose memory fits and that nothing refuses."""
        budget = budget_of(self.candidate, self.facts)

        def look(context: int, parallel: int) -> Fitted | None:
            demand = replace(self._demand(terms), context=context, parallel=parallel, state_bits=bits)
            if refuses(terms, self.candidate, Size(context, parallel, self.length, demand.batch)) is not None:
                return None
            expected = forecast(self.candidate, demand, budget)
            if not fits(expected):
                return None
            reasons = () if bits == 32 else (_STATE_16_BIT,)
            return Fitted(self.candidate, self.length, context, parallel, demand, expected, terms.settings, reasons)

        return sizes.largest(self._contexts(), self._slots(), look)

    def _contexts(self) -> tuple[int, ...]:
        least = sizes.USUAL[0] if self.candidate.device is None else sizes.LEAST_GPU
        return sizes.contexts(self.wish.context, least=least, most=self.bounds.context)

    def _slots(self) -> tuple[int, ...]:
        return sizes.slots(self.wish.parallel, self.bounds.slots)

    def _demand(self, terms: Terms) -> Demand:
        candidate = self.candidate
        return Demand(
            weights=candidate.weights or 0,
            shape=candidate.shape,
            context=0,
            parallel=0,
            method=candidate.method,
            draft_tokens=self.length,
            drafter_bytes=candidate.drafter_bytes or 0,
            drafter_shape=candidate.drafter_shape,
            backend=candidate.image.backend,
            kv=kv_of(candidate, terms.settings),
            batch=_batch(candidate, terms),
            eager=eager_of(candidate, terms.settings),
        )

    def _settled(self, terms: Terms, found: Fitted) -> Fitted | Rejected:
        """Ask again at the size that was found: what speaks of sizes speaks now."""
        size = Size(found.context, found.parallel, self.length, found.demand.batch)
        final = settle(self.candidate, self.wish, self.known, size) if terms.sized else terms
        if final.refused is not None:
            return turned_down(self.candidate, final.refused)
        if self._demand(final) != self._demand(terms):
            again = self._largest(final, found.demand.state_bits)
            if again is None:
                return self._too_big(final)
            found = again
        return replace(found, settings=final.settings, reasons=(*found.reasons, *final.reasons))

    def _too_big(self, terms: Terms) -> Rejected:
        candidate = self.candidate
        contexts, slots = self._contexts(), self._slots()
        budget = budget_of(candidate, self.facts)
        demand = replace(self._demand(terms), context=contexts[0], parallel=slots[-1])
        if candidate.image.runtime is Runtime.VLLM and demand.shape is not None and demand.shape.linear_layers:
            demand = replace(demand, state_bits=16)
        refused = refuses(terms, candidate, Size(contexts[0], slots[-1], self.length, demand.batch))
        smallest = forecast(candidate, demand, budget)
        if refused is not None and fits(smallest):
            return turned_down(candidate, refused)
        known = f"{candidate.evidence}: " if candidate.drafter is not None else ""
        less = giving_up.less(demand, lambda d: fits(forecast(candidate, d, budget)), self.wish)
        text = f"{known}needs {explain(smallest)}{less}"
        return replace(candidate.reject("too_big", text, candidate.variant.source), expected_memory=smallest)


_STATE_16_BIT = Reason(
    "state_16_bit",
    "the recurrent state is kept in 16 bits, for in 32 bits too little context would fit",
    "vLLM --mamba-ssm-cache-dtype; syv-ai/qwen38-27b-rtx3090 (102 MiB a drafted token and request)",
)


def _batch(candidate: Candidate, terms: Terms) -> int:
    """Tokens that are computed at once: what was settled, else the runtime's usual number; never above what is safe."""
    usual = BATCH_VLLM if candidate.image.runtime is Runtime.VLLM else BATCH_LLAMA
    batch = terms.settings.batch or usual
    limit = terms.most("batch")
    return batch if limit is None else min(batch, limit[0])
