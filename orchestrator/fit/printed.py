"""What an engine's printed count says about its pool: tokens or blocks in, bytes out.

vLLM's counts are quantised: blocks over blocks a request, times the longest request. Where a row leaves the KV type,
the drafter or prefix caching open, the count itself tells which of them it can have been printed under.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from orchestrator.fit.demanding import Understood
from orchestrator.kinds import KvType
from orchestrator.memory_fit import Demand, pool_bytes, pool_tokens
from orchestrator.memory_fit.demand import older
from orchestrator.memory_fit.vllm_layers import BLOCK, grouped
from orchestrator.plan import Method
from orchestrator.telling.amounts import count

_NEAR = 0.01


@dataclass(frozen=True, slots=True)
class Printed:
    """A pool by its printed count, and the demand it fits."""

    bytes: int
    demand: Demand
    told: str | None = None
    """What the count told about the configuration; None where the row said all of it."""


def pool(understood: Understood) -> Printed | None:
    """vLLM's pool on one rank, from tokens or blocks that a row states; None without either or without a shape."""
    stated, demand = understood.row.stated, understood.demand
    layout = grouped(demand)
    if layout is None or not understood.kv_known:
        return None
    if stated.gpu_blocks is not None:
        blocks = stated.gpu_blocks
        if layout.block_tokens != BLOCK and not older(demand.version, (0, 1)):
            return Printed(blocks * layout.block_bytes, demand)
        return Printed(blocks * layout.block_bytes, demand)
    if stated.kv_tokens is None:
        return None
    open_ones = [
        name for name in ("kv_dtype", "draft_tokens", "enable_prefix_caching") if name in understood.basis.assumed
    ]
    hybrid = demand.shape is not None and demand.shape.linear_layers > 0
    if hybrid and open_ones and understood.context_said:
        found = _consistent(understood, stated.kv_tokens)
        if found is not None:
            return found
    count = pool_bytes(demand, stated.kv_tokens)
    return None if count is None else Printed(count, demand)


def _consistent(understood: Understood, tokens: int) -> Printed | None:
    """The first configuration, from the likeliest on, under which exactly these tokens are printed; None when none
    is, or when the next like it would need another pool."""
    for step in _steps(understood):
        found: list[Printed] = []
        for demand, told in step:
            count = pool_bytes(demand, tokens)
            if count is None:
                continue
            holds = pool_tokens(demand, count)
            if holds is not None and abs(holds.tokens - tokens) <= 1:
                found.append(Printed(count, demand, told))
        if found:
            least, most = min(f.bytes for f in found), max(f.bytes for f in found)
            return found[0] if most <= least * (1 + _NEAR) else None
    return None


def _steps(understood: Understood) -> Iterator[list[tuple[Demand, str]]]:
    """Configurations by how much they add to what the row says: its own, then prefixes and type, then a drafter."""
    demand, assumed = understood.demand, understood.basis.assumed
    kinds = [demand.kv]
    if "kv_dtype" in assumed:
        kinds.append(KvType.FP8)
    prefixes = [demand.prefix_caching]
    if "enable_prefix_caching" in assumed:
        prefixes.append(not demand.prefix_caching)
    counts = [demand.draft_tokens]
    if "draft_tokens" in assumed:
        counts += [n for n in range(1, 9) if n != demand.draft_tokens]
    plain = [
        (replace(demand, kv=kv, prefix_caching=prefix, draft_tokens=n), _told(kv, prefix, demand.method, n))
        for n in counts
        for kv in kinds
        for prefix in prefixes
    ]
    yield plain[:1]
    yield plain[1:]
    if understood.row.draft is None and understood.shape is not None and understood.shape.mtp_layers:
        yield [
            (replace(d, method=Method.MTP, draft_tokens=n), _told(d.kv, d.prefix_caching, Method.MTP, n))
            for n in range(1, 7)
            for d, _ in plain
        ]


def _told(kv: KvType, prefix: bool, method: Method, tokens: int) -> str:
    drafts = f", {method} with {count(tokens, 'token')}" if method is not Method.NONE else ", no drafter"
    return f"the printed count fits a cache in {kv}, prefixes {'kept' if prefix else 'not kept'}{drafts}"
