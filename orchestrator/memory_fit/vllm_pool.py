"""vLLM's KV pool: what a number of sequences needs, and what a number of bytes holds and prints.

Sources: vLLM 0.32.0 v1/core/kv_cache_utils.py (`get_kv_cache_configs`, `get_kv_cache_capacity`,
`_max_memory_usage_bytes_from_groups`), up to 0.19 the same file's `_report_kv_cache_config`; V0's `gpu_blocks`.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.memory_fit.demand import Demand, older
from orchestrator.memory_fit.vllm_layers import BLOCK, Grouped, blocks_of, grouped

BY_CONCURRENCY = (0, 20)
"""The version since which the printed tokens are concurrency x longest sequence."""
NULL_BLOCK_CHECKED = (0, 32)
"""The version since which the check of the longest sequence leaves the null block out."""


@dataclass(frozen=True, slots=True)
class Pool:
    """vLLM's KV pool on one rank: `block_bytes` is what one block number costs over all layers of a group."""

    block_tokens: int
    block_bytes: int
    token_blocks: int
    """Blocks a sequence takes for its tokens."""
    state_blocks: int
    """Blocks a sequence takes for recurrent state, one state a drafted token included."""
    blocks: int
    """Blocks of the whole pool: all sequences at full length, and vLLM's null block."""

    @property
    def bytes(self) -> int:
        """What `--kv-cache-memory` must be given."""
        return self.blocks * self.block_bytes


def vllm_layout(demand: Demand) -> Grouped | None:
    """What all contexts and numbers of sequences of a demand have in common, for who asks for many of them; None where
    they have nothing."""
    return grouped(demand) if demand.shape is not None and demand.shape.attention_layers else None


def vllm_pool(demand: Demand, layout: Grouped | None = None) -> Pool | None:
    """The pool that holds `parallel` sequences of `context` tokens. None without a shape, or without a cache."""
    layout = layout or grouped(demand)
    if layout is None:
        return None
    tokens, states = _blocks(layout, demand, demand.context)
    return Pool(layout.block_tokens, layout.block_bytes, tokens, states, demand.parallel * (tokens + states) + 1)


def _blocks(layout: Grouped, demand: Demand, context: int) -> tuple[int, int]:
    tokens = states = 0
    for kind, groups in zip(layout.kinds, layout.groups, strict=True):
        taken = blocks_of(kind, groups, demand, context)
        if kind.states:
            states += taken
        else:
            tokens += taken
    return tokens, states


@dataclass(frozen=True, slots=True)
class Holds:
    """What a pool of some bytes holds, as vLLM prints it."""

    blocks: int
    tokens: int
    """`GPU KV cache size: N tokens`."""
    concurrency: float
    """`Maximum concurrency for N tokens per request: Cx`."""
    needed: int
    """Bytes that one sequence of the full context needs: a smaller pool is refused."""
    longest: int
    """`estimated maximum model length`: the longest sequence that one alone could have."""

    @property
    def enough(self) -> bool:
        """Whether vLLM would start."""
        return self.concurrency >= 1


def pool_tokens(demand: Demand, pool: int) -> Holds | None:
    """What `pool` bytes on each rank hold of sequences of `demand.context` tokens; None without a shape or cache."""
    layout = grouped(demand)
    if layout is None:
        return None
    blocks = max(pool, 0) // layout.block_bytes
    each = max(sum(_blocks(layout, demand, demand.context)), 1)
    concurrency = blocks / each
    if older(demand.version, (0, 1)):
        tokens = blocks * BLOCK
    elif older(demand.version, BY_CONCURRENCY):
        tokens = blocks // max(layout.count, 1) * layout.block_tokens
    else:
        tokens = int(concurrency * demand.context)
    checked = blocks if older(demand.version, NULL_BLOCK_CHECKED) else blocks - 1
    return Holds(blocks, tokens, concurrency, each * layout.block_bytes, _longest(layout, demand, checked))


def _longest(layout: Grouped, demand: Demand, blocks: int) -> int:
    """By bisection, as vLLM does it; never beyond the context."""
    low, high = 0, demand.context
    while low < high:
        middle = (low + high + 1) // 2
        if sum(_blocks(layout, demand, middle)) <= blocks:
            low = middle
        else:
            high = middle - 1
    return low


def pool_bytes(demand: Demand, tokens: int) -> int | None:
    """The least pool that prints at least `tokens`: the inverse of `pool_tokens`. None without a shape or cache."""
    layout = grouped(demand)
    if layout is None:
        return None
    each = max(sum(_blocks(layout, demand, demand.context)), 1)
    if older(demand.version, (0, 1)):
        blocks = -(-tokens // BLOCK)
    elif older(demand.version, BY_CONCURRENCY):
        blocks = -(-tokens // layout.block_tokens) * max(layout.count, 1)
    else:
        blocks = -(-tokens * each // max(demand.context, 1))
    return blocks * layout.block_bytes
