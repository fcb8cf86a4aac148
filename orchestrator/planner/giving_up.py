"""What to give up so that something fits that does not: the end of a rejection's sentence. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from orchestrator.kinds import Backend, KvType
from orchestrator.memory_fit import Demand
from orchestrator.planner import sizes
from orchestrator.planner.wishes import Preferences

_SHORTEST = 1024


def less(demand: Demand, fits: Callable[[Demand], bool], wish: Preferences) -> str:
    """`; it would fit with ...`: each thing that alone makes it fit, in the order in which one misses it least."""
    found = list(_each(demand, fits, wish))
    if found:
        return f"; it would fit with {' or with '.join(found)}"
    return "; no smaller context and no other KV type make it fit"


def _each(demand: Demand, fits: Callable[[Demand], bool], wish: Preferences) -> Iterator[str]:
    if wish.parallel is not None:
        fewer = _most(demand.parallel, lambda n: fits(replace(demand, parallel=n)))
        if fewer is not None:
            yield f"parallel {fewer}"
    if wish.context is not None:
        usual = [c for c in sizes.USUAL if _SHORTEST <= c < demand.context]
        shorter = max((c for c in usual if fits(replace(demand, context=c))), default=None)
        if shorter is not None:
            yield f"context {shorter}"
    if wish.kv is None and demand.kv in _HALF:
        kv = _half(demand)
        if fits(replace(demand, kv=kv)):
            yield f"KV type {kv}"


_HALF = frozenset({KvType.F16, KvType.BF16, KvType.F32})


def _half(demand: Demand) -> KvType:
    """The 8-bit type of the runtime: llama.cpp starts from f16, vLLM from bfloat16."""
    if demand.kv is KvType.F16:
        return KvType.Q8_0
    return KvType.FP8 if demand.backend in (Backend.CUDA, Backend.ROCM) else KvType.FP8_E4M3


def _most(parallel: int, fits: Callable[[int], bool]) -> int | None:
    """The most sequences below these that fit."""
    low, high = 0, parallel
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low or None
