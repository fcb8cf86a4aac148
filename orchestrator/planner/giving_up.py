"""What to give up so that something fits that does not: the end of a rejection's sentence. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from orchestrator.kinds import KvType
from orchestrator.memory_fit import Demand
from orchestrator.models import Runtime
from orchestrator.plan import Rejected
from orchestrator.planner import sizes
from orchestrator.planner.wishes import Preferences

_SHORTEST = 1024
_SHOWN = 3
_SMALLER = {
    Runtime.LLAMA_CPP: {KvType.F16: KvType.Q8_0, KvType.Q8_0: KvType.Q4_0},
    Runtime.VLLM: {KvType.BF16: KvType.FP8, KvType.F16: KvType.FP8},
    Runtime.SGLANG: {KvType.BF16: KvType.FP8_E4M3, KvType.F16: KvType.FP8_E4M3},
}


def less(runtime: Runtime, demand: Demand, fits: Callable[[Demand], bool], wish: Preferences) -> str:
    """`; it would fit with ...`: each thing that alone makes it fit, in the order in which one misses it least; else
    all of them together."""
    least = replace(demand, parallel=1, context=min(demand.context, _SHORTEST), kv=_smallest(runtime, demand))
    found = list(_each(runtime, demand, fits, wish)) if fits(least) else []  # mostly it is the weights
    if found:
        return f"; it would fit with {', or with '.join(found)}"
    least = replace(demand, parallel=1, context=min(demand.context, sizes.LEAST_GPU))
    if (wish.parallel or wish.context) and fits(least):
        return f"; it would fit with parallel 1 and context {least.context}"
    return "; less context, fewer sequences or another KV type do not make it fit"


def _smallest(runtime: Runtime, demand: Demand) -> KvType:
    """The next smaller KV type, where one may be given up."""
    return _SMALLER[runtime].get(demand.kv, demand.kv) if demand.flash_attention else demand.kv


def _each(runtime: Runtime, demand: Demand, fits: Callable[[Demand], bool], wish: Preferences) -> Iterator[str]:
    if wish.parallel is not None:
        fewer = _most(demand.parallel, lambda n: fits(replace(demand, parallel=n)))
        if fewer is not None:
            yield f"parallel {fewer}"
    if wish.context is not None:
        usual = [c for c in sizes.USUAL if _SHORTEST <= c < demand.context]
        shorter = max((c for c in usual if fits(replace(demand, context=c))), default=None)
        if shorter is not None:
            yield f"context {shorter}"
    smaller = _SMALLER[runtime].get(demand.kv)
    if smaller is not None and demand.flash_attention and fits(replace(demand, kv=smaller)):
        yield f"KV type {smaller}"


def _most(parallel: int, fits: Callable[[int], bool]) -> int | None:
    """The most sequences below these that fit."""
    low, high = 0, parallel
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low or None


def with_variants(rejected: Sequence[Rejected], fitting: Sequence[str]) -> list[Rejected]:
    """The rejections, those for memory with the weights that do fit, where these do in no way."""
    return [
        replace(r, text=f"{r.text}, but {_listed(fitting)}")
        if r.code == "too_big" and fitting and r.variant not in fitting
        else r
        for r in rejected
    ]


def _listed(variants: Sequence[str]) -> str:
    shown = " or ".join(variants[:_SHOWN])
    return f"variant {shown} fits"
