"""Absolute limits of a launch, from measured free memory: a pool in bytes, cells in tokens; never a ratio.

A ratio of a device (`--gpu-memory-utilization`, `--mem-fraction-static`) counts what others hold; these numbers do not.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.memory_fit.demand import Demand
from orchestrator.memory_fit.forecasts import forecast
from orchestrator.memory_fit.inverse import largest
from orchestrator.memory_fit.sglang_pool import sglang_pool
from orchestrator.memory_fit.vllm_pool import pool_tokens, vllm_pool
from orchestrator.models import Runtime


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine may be told to take of one device. Only what the runtime has a flag for."""

    pool: int | None = None
    """vLLM's `--kv-cache-memory-bytes`: whole blocks, all that the budget leaves for the cache."""
    cells: int | None = None
    """llama.cpp's `-c`: tokens of all slots together."""
    tokens: int | None = None
    """SGLang's `--max-total-tokens`, and what vLLM's pool will print."""


def limits(runtime: Runtime, demand: Demand, budget: int, *, correction: int = 0) -> Limits | None:
    """The largest limits within `budget` bytes of free memory; None when not even the demand fits, or when its
    shape is not known. `correction` is what this host's measurements add (`ExpectedMemory.correction`).
    """
    if demand.shape is None:
        return None
    expected = forecast(runtime, demand)
    if expected.total + correction > budget:
        return None
    if runtime is Runtime.LLAMA_CPP:
        found = largest(runtime, demand, budget, correction=correction)
        return None if found.context is None else Limits(cells=found.context * demand.parallel)
    spare = budget - expected.total - correction
    if runtime is Runtime.VLLM:
        pool = vllm_pool(demand)
        if pool is None:
            return None
        size = (pool.bytes + spare) // pool.block_bytes * pool.block_bytes
        held = pool_tokens(demand, size)
        return Limits(pool=size, tokens=None if held is None else held.tokens)
    tokens = sglang_pool(demand)
    if tokens is None or not tokens.token_bytes:
        return None
    return Limits(tokens=tokens.tokens + spare // (tokens.token_bytes + tokens.draft_token_bytes))
