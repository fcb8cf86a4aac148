"""How large: draft length, context and sequences for a candidate, so that it fits its device and is safe. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hosts.facts import Accelerator, HostFacts
from orchestrator.catalogue.restrictions import Restriction
from orchestrator.kinds import Backend
from orchestrator.measured import NOTHING, Measured
from orchestrator.memory_fit import Demand, Grouped, corrected, explain, fits, reserve, vllm_layout
from orchestrator.memory_fit import forecast as expect
from orchestrator.models import Runtime
from orchestrator.plan import ExpectedMemory, Reason, Rejected
from orchestrator.planner import drafts, giving_up, sizes
from orchestrator.planner.candidates import Candidate
from orchestrator.planner.scoring import TIGHT, ran
from orchestrator.planner.terms import (
    Known,
    Size,
    Terms,
    applicable,
    kv_of,
    prefix_caching_of,
    refuses,
    settle,
)
from orchestrator.planner.wishes import Preferences
from orchestrator.settings import Settings

BATCH_VLLM = 2048
"""max_num_batched_tokens: scratch grows with it; 4096-8192 is the most for 24 GB (club-3090#838)."""
BATCH_LLAMA = 512
SURELY = 0.8
"""The part of a file's weights that is on the devices for certain: embeddings may stay in system memory, and a vision
tower or an MTP head may be left out."""


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
    overridden: bool = False
    """Whether a wish stands against what is known to be safe."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most context and sequences that may be tried, and what that cut off a wish."""

    context: int
    slots: int | None
    reasons: tuple[Reason, ...]


def budget_of(candidate: Candidate, facts: HostFacts) -> int | None:
    """Bytes that a plan may take on each of the candidate's devices; None when no device says."""
    if not candidate.devices:
        return max(facts.memory.available - reserve(Backend.CPU, unified=False, total=facts.memory.total), 0)
    each = [_left(device, candidate.image.backend) for device in candidate.devices]
    return min((left for left in each if left is not None), default=None)


def _left(device: Accelerator, backend: Backend) -> int | None:
    free = device.memory_free if device.memory_free is not None else device.memory_total
    if free is None:
        return None
    return max(free - reserve(backend, unified=device.unified, total=device.memory_total), 0)


def fit(
    candidate: Candidate,
    facts: HostFacts,
    wish: Preferences,
    restrictions: Known = (),
    measured: Measured = NOTHING,
    *,
    brief: bool = False,
) -> Fitted | Rejected:
    """The most worthy size that fits and is safe, or why there is none; `brief`: nobody reads why."""
    weights, drafter_bytes = candidate.weights, candidate.drafter_bytes
    if weights is None or drafter_bytes is None:
        return candidate.reject("size_unknown", _size_unknown(candidate), candidate.variant.source)
    budget = budget_of(candidate, facts)
    if brief and budget is not None and SURELY * weights > budget * candidate.tensor_parallel:
        return candidate.reject("too_big", "the weights alone are larger", candidate.variant.source)
    known = applicable(restrictions, candidate)
    length, cut = drafts.trained(candidate, wish, drafts.wanted(candidate, wish))
    terms = settle(candidate, wish, known, Size(wish.context, wish.parallel, length, wish.batch))
    length, safe = drafts.safe(length, terms)
    if terms.refused is not None:
        return turned_down(candidate, terms.refused)
    bounds = _bounds(candidate, wish, terms)
    if isinstance(bounds, Rejected):
        return bounds
    search = _Search(candidate, wish, known, length, bounds, budget, measured)
    found = search.run(terms)
    if isinstance(found, Rejected):
        return found
    return replace(found, reasons=(*cut, *safe, *bounds.reasons, *found.reasons))


def _size_unknown(candidate: Candidate) -> str:
    """Whose size is not known, and what makes it known."""
    whose = (
        "its weights"
        if candidate.weights is None
        else f"its drafter {'' if candidate.drafter is None else candidate.drafter.name}"
    )
    return f"the size of {whose} is not known: `outrider model pull {candidate.model}` fetches it, then it is"


def turned_down(candidate: Candidate, restriction: Restriction) -> Rejected:
    """The rejection in a restriction's own words; of an image whose version nobody knows, that this is why it holds."""
    text, image = restriction.text, candidate.image
    if restriction.versions and image.least_version is None:
        text += f"; which version {image.reference} has is not known: an [[image]] of it in catalog.d says so"
    return candidate.reject(restriction.id, text, restriction.source)


def _bounds(candidate: Candidate, wish: Preferences, terms: Terms) -> Bounds | Rejected:
    """What limits sizes: training, known combinations, restrictions. A wish beyond them is turned down."""
    longest = None if candidate.shape is None else candidate.shape.max_context
    if wish.context is not None and longest is not None and wish.context > longest:
        text = f"{wish.context} tokens are asked for, the model was trained for {longest}"
        return candidate.reject("context_too_long", text)
    reasons: list[Reason] = []
    most = _most_unasked(candidate)
    tried = None if candidate.known is None else candidate.known.context_limit
    limits: list[tuple[int, str, str]] = []
    if tried is not None and candidate.known is not None:
        limits.append((tried, f"{candidate.method} was seen to work up to there", candidate.known.source))
    strict = terms.most("context")
    if strict is not None:
        limits.append((strict[0], strict[1].text, strict[1].source))
    for bound, why, source in limits:
        if wish.context is not None and wish.context > bound:
            text = f"{wish.context} tokens are asked for, {bound} are known to be safe: {why}"
            if wish.method is not candidate.method:
                return candidate.reject("context_limit", text, source)
            reasons.append(Reason("context_risky", f"{text}, and was asked for", source))
        most = min(most, bound)
    safe = terms.most("parallel")
    if safe is not None and wish.parallel is not None and wish.parallel > safe[0]:
        slots, limit = safe
        text = f"{wish.parallel} sequences at once are asked for, {slots} are safe with {candidate.method}"
        return candidate.reject(
            "too_many_slots", f"{text}: {limit.text}; take parallel {slots}, or another method", limit.source
        )
    return Bounds(min(most, longest or most), None if safe is None else safe[0], tuple(reasons))


def _most_unasked(candidate: Candidate) -> int:
    if candidate.device is None:
        return sizes.MOST_CPU
    return sizes.MOST_SHARED if candidate.device.unified else sizes.MOST_GPU


@dataclass(frozen=True, slots=True)
class _Search:
    """Looking for the size of one candidate."""

    candidate: Candidate
    wish: Preferences
    known: tuple[Restriction, ...]
    length: int
    bounds: Bounds
    budget: int | None
    measured: Measured

    def forecast(self, demand: Demand, layout: Grouped | None = None) -> ExpectedMemory:
        """What this takes on each device, as this host's own measurements correct it."""
        expected = expect(self.candidate.image.runtime, demand, budget=self.budget, layout=layout)
        residual = self.measured.memory.get(ran(self.candidate)) if self.measured.memory else None
        return expected if residual is None else corrected(expected, residual).expected

    def run(self, terms: Terms) -> Fitted | Rejected:
        """Hybrids of vLLM and SGLang keep their state in 16 bits where in 32 too little context would fit."""
        candidate, wish, shape = self.candidate, self.wish, self.candidate.shape
        hybrid = candidate.image.runtime is not Runtime.LLAMA_CPP and shape is not None and shape.linear_layers > 0
        longest = None if shape is None else shape.max_context
        tight: Fitted | None = None
        smallest = self._smallest(terms)
        if not fits(self.forecast(smallest)):
            return self._too_big(terms, smallest)
        for bits in (32, 16) if hybrid else (32,):
            found = self._largest(terms, bits)
            if found is None:
                continue
            if bits == 16 or wish.context is not None or found.context >= min(TIGHT, longest or TIGHT):
                return self._settled(terms, found)
            tight = found
        return self._too_big(terms, smallest) if tight is None else self._settled(terms, tight)

    def _largest(self, terms: Terms, bits: int) -> Fitted | None:
        """The most worthy size whose memory fits and that nothing refuses."""
        base = replace(self._demand(terms), state_bits=bits)
        layout = vllm_layout(base) if self.candidate.image.runtime is Runtime.VLLM else None

        def look(context: int, parallel: int) -> Fitted | None:
            demand = base.sized(context, parallel)
            if refuses(terms, self.candidate, Size(context, parallel, self.length, demand.batch)) is not None:
                return None
            expected = self.forecast(demand, layout)
            if not fits(expected):
                return None
            reasons = () if bits == 32 else (_STATE_16_BIT,)
            return Fitted(self.candidate, self.length, context, parallel, demand, expected, terms.settings, reasons)

        return sizes.largest(self._contexts(), self._slots(), look)

    def _contexts(self) -> tuple[int, ...]:
        least = sizes.USUAL[0] if self.candidate.device is None else sizes.LEAST_GPU
        most = self.bounds.context if self._counted else min(self.bounds.context, TIGHT)
        return sizes.contexts(self.wish.context, least=least, most=most)

    def _slots(self) -> tuple[int, ...]:
        return sizes.slots(self.wish.parallel, self.bounds.slots if self._counted or self.wish.parallel else 1)

    @property
    def _counted(self) -> bool:
        """Whether memory limits the size. Where nobody knows how much there is, little is taken unless more is asked
        for."""
        return self.budget is not None or self.candidate.device is None

    def _demand(self, terms: Terms) -> Demand:
        candidate, settings = self.candidate, terms.settings
        device = candidate.device
        portions = None if candidate.target is None else candidate.target.portions
        unseen = 0  # the vision tower, which vLLM leaves out with --language-model-only
        if portions is not None and not settings.vision and candidate.image.runtime is Runtime.VLLM:
            unseen = portions.vision
        return Demand(
            weights=max((candidate.weights or 0) - unseen, 0),
            embedding=None if portions is None else portions.embedding,
            head=None if portions is None else portions.mtp,
            shape=candidate.shape,
            context=0,
            parallel=0,
            method=candidate.method,
            draft_tokens=self.length,
            drafter_bytes=candidate.drafter_bytes or 0,
            drafter_shape=candidate.drafter_shape,
            backend=candidate.image.backend,
            kv=kv_of(candidate, settings),
            batch=_batch(candidate, terms),
            eager=bool(settings.eager),
            tensor_parallel=candidate.tensor_parallel,
            draft_ranks=candidate.draft_ranks,
            version=candidate.image.least_version,
            unified=None if device is None else device.unified,
            prefix_caching=prefix_caching_of(candidate, settings),
            draft_kv=settings.draft_kv,
            flash_attention=settings.flash_attention is not False,
            vision=bool(settings.vision),
            device_total=None if device is None else device.memory_total,
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
                return self._too_big(final, self._smallest(final))
            found = again
        reasons = (*found.reasons, *final.reasons, *self._batch_cut(found, final), *self._measured(found.demand))
        return replace(found, settings=final.settings, overridden=final.overridden, reasons=reasons)

    def _batch_cut(self, found: Fitted, terms: Terms) -> tuple[Reason, ...]:
        asked, limit = self.wish.batch, terms.most("batch")
        if asked is None or limit is None or asked <= limit[0]:
            return ()
        text = f"{asked} tokens at once are asked for, {found.demand.batch} are computed: {limit[1].text}"
        return (Reason("batch_limited", text, limit[1].source),)

    def _measured(self, demand: Demand) -> tuple[Reason, ...]:
        residual = self.measured.memory.get(ran(self.candidate))
        if residual is None:
            return ()
        expected = expect(self.candidate.image.runtime, demand, budget=self.budget)
        return (Reason("memory_measured", corrected(expected, residual).text),)

    def _smallest(self, terms: Terms) -> Demand:
        """The least of what may be tried: hybrids of vLLM and SGLang with their state in 16 bits."""
        shape = self.candidate.shape
        hybrid = self.candidate.image.runtime is not Runtime.LLAMA_CPP and shape is not None and shape.linear_layers > 0
        context, parallel = self._contexts()[0], self._slots()[-1]
        return replace(self._demand(terms), context=context, parallel=parallel, state_bits=16 if hybrid else 32)

    def _too_big(self, terms: Terms, demand: Demand) -> Rejected:
        candidate = self.candidate
        size = Size(demand.context, demand.parallel, self.length, demand.batch)
        refused, smallest = refuses(terms, candidate, size), self.forecast(demand)
        if refused is not None and fits(smallest):
            return turned_down(candidate, refused)
        known = f"{candidate.evidence}: " if candidate.drafter is not None else ""
        less = giving_up.less(candidate.image.runtime, demand, lambda d: fits(self.forecast(d)), self.wish)
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
