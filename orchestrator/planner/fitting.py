"""How large: draft length, context and sequences for a candidate, so that it fits its device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hosts.facts import HostFacts
from orchestrator.kinds import Backend, KvType
from orchestrator.memory_fit import (
    Demand,
    explain,
    fits,
    llama_cpp,
    reserve,
    vllm,
)
from orchestrator.models import Ngram, Runtime
from orchestrator.plan import ExpectedMemory, Method, Reason, Rejected
from orchestrator.planner.candidates import Candidate
from orchestrator.planner.wishes import Preferences

SIZES_GPU = (
    (32768, 4), (32768, 2), (16384, 4), (16384, 2), (8192, 4), (16384, 1), (8192, 2), (8192, 1),
    (4096, 2), (4096, 1), (2048, 1),
)  # fmt: skip
"""(context, sequences) that are tried, best first, when nobody says; the first that fits is taken."""
SIZES_CPU = ((8192, 4), (4096, 4), (8192, 2), (4096, 2), (4096, 1), (2048, 1), (1024, 1))
TIGHT = 8192
"""A context below this is worth less than recurrent state in 32 bits."""
BATCH_VLLM = 2048
"""max_num_batched_tokens: scratch grows with it; 4096-8192 is the most for 24 GB (club-3090#838)."""
BATCH_LLAMA = 512

_DRAFTS = {
    # Method: (llama.cpp, vLLM). Priors until this host has measured
    Method.DFLASH: (7, 7),  # 7 is DFlash2's trained length
    Method.DSPARK: (7, 7),  # advised for Ling (recipes#899)
    Method.EAGLE3: (4, 3),
    Method.MTP: (
        2,
        3,
    ),  # 24 GB cards peak at 2 with llama.cpp (qwen38-mtp); k=4 crashes on FlashInfer, k=3 is stable (SYV)
    Method.DRAFT: (5, 5),
}
MTP_HYBRID_LIMIT = 4
"""More than 4 drafted tokens: illegal access in gated delta nets (vLLM PR#37052)."""
DFLASH_SEQUENCES = 8
"""cudaErrorIllegalAddress with DFlash and CUDA graphs at 16-32 requests (z-lab/dflash#146)."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A candidate with its sizes. `demand` is what memory was computed for."""

    candidate: Candidate
    draft_tokens: int
    context: int
    parallel: int
    demand: Demand
    expected: ExpectedMemory
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


def fit(candidate: Candidate, facts: HostFacts, wish: Preferences) -> Fitted | Rejected:
    """The first size that fits, or why none does."""
    weights = candidate.weights
    drafter_bytes = candidate.drafter_bytes
    if weights is None or drafter_bytes is None:
        return candidate.reject("size_unknown", "the size of its weights is not known", candidate.variant.source)
    draft_tokens, reasons = _draft_length(candidate, wish)
    longest = None if candidate.shape is None else candidate.shape.max_context
    if wish.context is not None and longest is not None and wish.context > longest:
        text = f"{wish.context} tokens are asked for, the model was trained for {longest}"
        return candidate.reject("context_too_long", text)
    slots = _slots(candidate)
    if slots is not None and wish.parallel is not None and wish.parallel > slots:
        text = (
            f"{candidate.image.name} is safe with {candidate.method} up to {slots} slots, {wish.parallel} are asked for"
        )
        if wish.method is not candidate.method:
            return candidate.reject("too_many_slots", text, candidate.image.source)
        reasons = (*reasons, Reason("slots_limited", f"{text}: {slots} are given", candidate.image.source))
    demand = Demand(
        weights=weights,
        shape=candidate.shape,
        context=0,
        parallel=0,
        method=candidate.method,
        draft_tokens=draft_tokens,
        drafter_bytes=drafter_bytes,
        drafter_shape=candidate.drafter_shape,
        backend=candidate.image.backend,
        kv=_kv(candidate, wish),
        batch=BATCH_VLLM if candidate.image.runtime is Runtime.VLLM else BATCH_LLAMA,
        eager=candidate.image.eager,
    )
    budget = budget_of(candidate, facts)
    smallest: ExpectedMemory | None = None
    tight: Fitted | None = None
    for step in _demands(candidate, demand, wish, slots, longest):
        expected = (vllm if candidate.image.runtime is Runtime.VLLM else llama_cpp)(step, budget=budget)
        if smallest is None or expected.total < smallest.total:
            smallest = expected
        if fits(expected):
            found = _fitted(candidate, step, expected, reasons)
            if step.state_bits == 16 or wish.context is not None or step.context >= min(TIGHT, longest or TIGHT):
                return found
            tight = tight or found
    if tight is not None:
        return tight
    assert smallest is not None, "at least one size is always tried"
    known = f"{candidate.evidence}: " if candidate.drafter is not None else ""
    return replace(
        candidate.reject("too_big", f"{known}needs {explain(smallest)}", candidate.variant.source),
        expected_memory=smallest,
    )


def _fitted(candidate: Candidate, step: Demand, expected: ExpectedMemory, reasons: tuple[Reason, ...]) -> Fitted:
    if step.state_bits == 16:
        text = "the recurrent state is kept in 16 bits, for in 32 bits too little context would fit"
        source = "vLLM --mamba-ssm-cache-dtype; syv-ai/qwen38-27b-rtx3090 (102 MiB a drafted token and request)"
        reasons = (*reasons, Reason("state_16_bit", text, source))
    return Fitted(candidate, step.draft_tokens, step.context, step.parallel, step, expected, reasons)


def _demands(
    candidate: Candidate, demand: Demand, wish: Preferences, slots: int | None, longest: int | None
) -> Iterator[Demand]:
    """Sizes from best to smallest; for vLLM hybrids a second round with the state in 16 bits."""
    shape = candidate.shape
    hybrid = candidate.image.runtime is Runtime.VLLM and shape is not None and shape.linear_layers > 0
    limit = None if candidate.known is None else candidate.known.context_limit
    for bits in (32, 16) if hybrid else (32,):
        for context, parallel in _sizes(candidate, wish, slots):
            if wish.context is None:
                context = min(context, longest or context, limit or context)  # noqa: PLW2901 - clipped, not changed
            yield replace(demand, context=context, parallel=parallel, state_bits=bits)


def _sizes(candidate: Candidate, wish: Preferences, slots: int | None) -> list[tuple[int, int]]:
    sizes = SIZES_CPU if candidate.device is None else SIZES_GPU
    clipped = [
        (wish.context or context, min(wish.parallel or parallel, slots or wish.parallel or parallel))
        for context, parallel in sizes
    ]
    return list(dict.fromkeys(clipped))


def _slots(candidate: Candidate) -> int | None:
    """How many sequences are safe with this method in this image; None is no limit."""
    limit = candidate.image.slots.get(candidate.method)
    if limit is None and candidate.image.runtime is Runtime.VLLM and candidate.method is Method.DFLASH:
        return DFLASH_SEQUENCES
    return limit


def _kv(candidate: Candidate, wish: Preferences) -> KvType:
    if wish.kv is not None:
        return wish.kv
    if candidate.known is not None and candidate.known.kv is not None:
        return candidate.known.kv
    return KvType.BF16 if candidate.image.runtime is Runtime.VLLM else KvType.F16


def _draft_length(candidate: Candidate, wish: Preferences) -> tuple[int, tuple[Reason, ...]]:
    """The draft length, and what was cut off a wish."""
    method = candidate.method
    if method is Method.NONE:
        return 0, ()
    if method is Method.NGRAM:
        return wish.draft_tokens or (wish.ngram or Ngram()).longest, ()
    known = None if candidate.known is None else candidate.known.draft_tokens
    prior = _DRAFTS[method][candidate.image.runtime is Runtime.VLLM]
    wanted = wish.draft_tokens or known or prior
    limit, why = candidate.longest_draft, "the drafter was trained for"
    hybrid = candidate.shape is not None and candidate.shape.linear_layers > 0
    if method is Method.MTP and hybrid and candidate.image.runtime is Runtime.VLLM:
        limit, why = MTP_HYBRID_LIMIT, "gated delta nets are safe with"
    if limit is None or wanted <= limit:
        return wanted, ()
    if wish.draft_tokens is None:
        return limit, ()
    text = f"{wish.draft_tokens} draft tokens are asked for, {why} {limit}: {limit} are drafted"
    return limit, (
        Reason("draft_clamped", text, "vLLM PR#37052" if method is Method.MTP else "llama.cpp clamps it too"),
    )
