"""SGLang's memory: its reserve, the pool of recurrent states, the token pools of target and drafter.

Sources: SGLang 0.5.23, srt/arg_groups/memory_hook.py (`_handle_gpu_memory_settings`: chunk, largest captured batch and
reserve by card), srt/mem_cache/kv_cache_configurator.py (`_profile_available_bytes`, `_handle_max_mamba_cache`,
`_calculate_mamba_ratio`), srt/model_executor/pool_configurator.py (bytes of a token; a drafter's pool has the target's
tokens). Seven logs agree within 0.4 %. SGLang prints "GB" and means GiB.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.memory_fit.demand import Demand
from orchestrator.memory_fit.recurrent import state_layer
from orchestrator.memory_fit.sizes import GIB, MIB
from orchestrator.memory_fit.widths import attention
from orchestrator.models import Shape
from orchestrator.plan import Method

MAMBA_RATIO = 0.9
"""--mamba-full-memory-ratio."""
SLOTS_WITH_RADIX = 3
"""State slots a request, at the least, when prefixes are kept."""
WINDOW_RATIO = 0.8
"""--swa-full-tokens-ratio: tokens of windowed layers over those of full ones."""

_CARDS = (
    # memory below, chunked prefill, largest captured batch (fewer than 4 ranks)
    (20 * 1024, 2048, 8),
    (35 * 1024, 4096, 48),
    (60 * 1024, 4096, 32),
    (160 * 1024, 8192, 256),
)
_LARGEST = (16384, 512)
_PARALLEL_BATCH = {48: 160, 32: 160, 256: 512}
"""The largest captured batch from 4 ranks on."""


@dataclass(frozen=True, slots=True)
class SglangPool:
    """Bytes of one rank. `tokens` holds for target and drafter alike."""

    tokens: int
    token_bytes: int
    """Of the target, keys and values of all its layers."""
    draft_token_bytes: int
    state_slots: int
    state_bytes: int
    """All slots of recurrent state, the spare one and the drafts' copies included."""

    @property
    def kv(self) -> int:
        """The target's keys and values."""
        return self.tokens * self.token_bytes

    @property
    def draft_kv(self) -> int:
        """The drafter's."""
        return self.tokens * self.draft_token_bytes


def reserve(total: int, *, chunk: int | None = None, max_batch: int | None = None, ranks: int = 1) -> int:
    """Bytes that SGLang leaves out of its static share by default, for a card of `total` bytes."""
    mib = total // MIB
    default_chunk, batch = next(((c, b) for below, c, b in _CARDS if mib < below), _LARGEST)
    if ranks >= 4:
        batch = _PARALLEL_BATCH.get(batch, batch)
    chunk, batch = chunk or default_chunk, max_batch or batch
    kept = 512 + 1.5 * max(chunk, 2048) + 128 * ranks + 2 * batch
    kept += 8 * _prefill_graphs(chunk)
    return int((max(kept, 10 * 1024) if mib > 60 * 1024 else kept) * MIB)


_CAPTURED = ((4, 33, 4), (48, 257, 16), (288, 513, 32), (576, 1025, 64), (1280, 4097, 256))
"""Token counts that prefill graphs are captured for (arg_groups/cuda_graph_hook.py:480), then every 512."""


def _prefill_graphs(chunk: int) -> int:
    """How many prefill sizes are captured up to a chunk."""
    return sum(len(range(a, min(b, chunk + 1), step)) for a, b, step in _CAPTURED) + max(chunk - 4096, 0) // 512


def static_share(total: int, *, chunk: int | None = None, max_batch: int | None = None, ranks: int = 1) -> float:
    """--mem-fraction-static when nobody says."""
    return round((total - reserve(total, chunk=chunk, max_batch=max_batch, ranks=ranks)) / total, 3)


def token_bytes(demand: Demand, shape: Shape) -> int:
    """Bytes a token takes over all layers on one rank. Windowed layers count with their share of tokens."""
    total = 0.0
    for kind in attention(shape, demand.tensor_parallel):
        share = 1.0 if kind.window is None else WINDOW_RATIO
        total += kind.count * kind.token(demand.kv, demand.values) * share
    return int(total)


def draft_token_bytes(demand: Demand) -> int:
    """Bytes a token takes in the drafter's pool on one rank: an MTP head is one more of the target's layers."""
    shape = demand.shape
    if shape is None or demand.method in (Method.NONE, Method.NGRAM):
        return 0
    kv = demand.draft_kv or demand.kv
    own = demand.drafter_shape
    if own is None:
        kinds = attention(shape, demand.tensor_parallel)
        layers = max(shape.mtp_layers, 1) if demand.method is Method.MTP else 0
        return layers * kinds[0].token(kv, kv) if kinds else 0
    return sum(kind.count * kind.token(kv, kv) for kind in attention(own, demand.tensor_parallel))


def state_of_request(demand: Demand, shape: Shape) -> int:
    """Bytes of one state slot over all linear layers on one rank."""
    layer = state_layer(shape, conv_bytes=2, state_bytes=demand.state_bits // 8, ranks=demand.tensor_parallel)
    return shape.linear_layers * layer


def slots(demand: Demand) -> int:
    """State slots for the sequences that run: one each without kept prefixes, else three."""
    return (demand.sequences or demand.parallel) * (SLOTS_WITH_RADIX if demand.prefix_caching else 1)


def states(demand: Demand, shape: Shape, count: int) -> int:
    """Bytes of `count` state slots, the pool's spare one, and a copy of the state a drafted token and request."""
    each = state_of_request(demand, shape)
    drafts = (demand.draft_tokens + 1) if demand.drafted and demand.method is not Method.NGRAM else 0
    ratio = SLOTS_WITH_RADIX if demand.prefix_caching else 1
    running = min(demand.sequences or demand.parallel, count // ratio)
    return (count + 1) * each + drafts * (running + 1) * each


def sglang_pool(demand: Demand, available: int | None = None) -> SglangPool | None:
    """The pools for `available` bytes on one rank, or, without it, those that hold `parallel` x `context` tokens.

    None without a shape. A hybrid without kept prefixes has a slot a running request; with them SGLang gives states
    0.9 / 1.9 of what there is.
    """
    shape = demand.shape
    if shape is None:
        return None
    each, draft = token_bytes(demand, shape), draft_token_bytes(demand)
    count = slots(demand) if shape.linear_layers and state_of_request(demand, shape) else 0
    if available is None:
        held = states(demand, shape, count) if count else 0
        return SglangPool(demand.parallel * demand.context, each, draft, count, held)
    if count and demand.prefix_caching:
        share = int(available * MAMBA_RATIO / (1 + MAMBA_RATIO))
        one = state_of_request(demand, shape)
        drafts = (demand.draft_tokens + 1) if demand.drafted and demand.method is not Method.NGRAM else 0
        count = max(int((share - one * (1 + drafts)) // (one * (1 + drafts / SLOTS_WITH_RADIX))), 0)
    held = states(demand, shape, count) if count else 0
    tokens = max(available - held, 0) // (each + draft) if each + draft else 0
    return SglangPool(tokens, each, draft, count, held)


def available(free_before: int, free_after: int, share: float) -> int:
    """Bytes for the pools: free after the load, less the part of what was free before it that stays unused."""
    return free_after - int(free_before * (1 - share))


def default_reserve(demand: Demand) -> int:
    """The reserve of a demand's device; a 24 GB card's where its size is not known."""
    total = demand.device_total or 24 * GIB
    return reserve(total, chunk=demand.batch, max_batch=demand.sequences, ranks=demand.tensor_parallel)
