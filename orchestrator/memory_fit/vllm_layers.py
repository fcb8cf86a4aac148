"""How vLLM puts layers with different caches into groups that share one pool of equal pages.

Read off vLLM 0.32.0 and 0.33.0: `_align_hybrid_block_size` (platforms/interface.py: the attention block grows until
its page holds one layer's recurrent state), `unify_kv_cache_spec_page_size`, `_get_kv_cache_groups_uniform_page_size`
and the specs' `max_memory_usage_bytes` (v1/core/kv_cache_utils.py, v1/kv_cache_interface.py). Checked against those
functions themselves, and against printed token counts: exact where a log shows its whole configuration.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from orchestrator.kinds import Backend
from orchestrator.memory_fit.demand import Demand, older
from orchestrator.memory_fit.recurrent import vllm_page
from orchestrator.memory_fit.sizes import whole
from orchestrator.memory_fit.widths import Layers, attention, per_rank
from orchestrator.models import Shape
from orchestrator.plan import Method

BLOCK = 16
"""Tokens of a block, unless a recurrent state needs more."""
CPU_BLOCK = 128
"""The same on a CPU, but for latents (platforms/cpu.py:296)."""
LATENT_BLOCK = 128
"""What a block is a multiple of in hybrids with latent attention."""
ONE_GROUP_BELOW = 1.5
"""Kinds whose layer counts differ by less share the larger count as group size; else the smaller one is it."""
LATENTS_CACHED = (0, 7, 1)
"""The version since which latents are cached; before, keys and values of every head, padded to 256 (0.5.4
model_executor/models/deepseek_v2.py)."""
OVERLAPPED = (0, 23)
"""The version since which two batches are in flight at once (asynchronous scheduling): token counts of 0.22.0 fit
one, of 0.27.1 two."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Layers with one cache layout: `block` tokens to a page of `page` bytes in each of `count` layers.

    `window` None: as long as the sequence. `states`: pages a sequence takes for recurrent state instead of tokens.
    """

    count: int
    block: int
    page: int
    key: tuple[object, ...]
    window: int | None = None
    states: int = 0
    latent: bool = False


@dataclass(frozen=True, slots=True)
class Grouped:
    """All layers in groups: a block number costs `block_bytes`, a page in each layer of the widest group."""

    kinds: tuple[Kind, ...]
    groups: tuple[int, ...]
    """Groups of each kind."""
    block_bytes: int
    block_tokens: int
    """Tokens of a block of the layers without a window: what vLLM calls its block size."""

    @property
    def count(self) -> int:
        """All groups."""
        return sum(self.groups)


def grouped(demand: Demand) -> Grouped | None:
    """The groups of a demand on one rank; None where nothing is cached or nothing is known."""
    shape = demand.shape
    if shape is None:
        return None
    kinds, block = _kinds(demand, shape)
    kinds = tuple(kind for kind in kinds if kind.page)
    if not kinds:
        return None
    if not any(kind.states for kind in kinds):
        largest = max(kind.page for kind in kinds)
        if any(kind.latent and largest % kind.page for kind in kinds):
            # latents cannot be padded: windows are given up, and all layers cached at full length
            kinds = tuple(replace(kind, window=None, block=block) for kind in kinds)
        if len({(kind.window, kind.block) for kind in kinds}) == 1:
            # layers of one type: one group, whose block is a page of each, equal or not
            return Grouped(kinds, (1,) + (0,) * (len(kinds) - 1), sum(k.count * k.page for k in kinds), block)
    kinds = _unified(kinds)
    low, high = min(k.count for k in kinds), max(k.count for k in kinds)
    size = high if high < low * ONE_GROUP_BELOW else low
    return Grouped(kinds, tuple(whole(kind.count, size) for kind in kinds), kinds[0].page * size, block)


def _kinds(demand: Demand, shape: Shape) -> tuple[tuple[Kind, ...], int]:
    """Every kind of layer, like ones together, and the block size."""
    layers = [layer for layer in _attention(demand, shape) if layer.count]
    if demand.method is Method.MTP and demand.drafter_shape is None and layers:
        layers = [replace(layers[0], count=layers[0].count + max(shape.mtp_layers, 1)), *layers[1:]]
    block = _block(demand, shape, layers)
    found = [_kind(layer, block, layer.token(demand.kv, demand.values)) for layer in layers]
    own = demand.drafter_shape
    if own is not None and demand.method not in (Method.NONE, Method.NGRAM):
        kv = demand.draft_kv or demand.kv
        # a drafter whose cache has a type of its own is configured apart, and keeps the small block
        drafts = block if kv is demand.kv else smallest_block(demand)
        found += [
            _kind(layer, drafts, layer.token(kv, kv)) for layer in attention(own, demand.drafter_on) if layer.count
        ]
    if shape.linear_layers:
        state = vllm_page(demand, shape)
        page = max([kind.page for kind in found] + [state])
        states = (2 if demand.prefix_caching else 1) + demand.drafted
        found.append(Kind(shape.linear_layers, block, page, ("state", state), states=states))
    return _together(found), block


def _attention(demand: Demand, shape: Shape) -> tuple[Layers, ...]:
    if shape.kv_lora_rank is None or not older(demand.version, LATENTS_CACHED):
        return attention(shape, demand.tensor_parallel)
    return (Layers(shape.attention_layers, per_rank(shape.kv_heads, demand.tensor_parallel), 256, 256),)


def smallest_block(demand: Demand) -> int:
    """Tokens of a block where no recurrent state makes it larger."""
    latent = demand.shape is not None and demand.shape.kv_lora_rank is not None
    return CPU_BLOCK if demand.backend is Backend.CPU and not latent else BLOCK


def _block(demand: Demand, shape: Shape, layers: list[Layers]) -> int:
    step = smallest_block(demand)
    if not shape.linear_layers:
        return step
    token = layers[0].token(demand.kv, demand.values) if layers else 0
    if not token:
        return max(demand.context, 1)
    step = LATENT_BLOCK if layers[0].latent else step
    return max(whole(vllm_page(demand, shape), step * token), 1) * step


def _kind(layer: Layers, block: int, token: int) -> Kind:
    key = (layer.heads, layer.keys, layer.values, layer.window, token)
    return Kind(layer.count, block, block * token, key, layer.window, latent=layer.latent)


def _together(kinds: list[Kind]) -> tuple[Kind, ...]:
    merged: dict[tuple[object, ...], Kind] = {}
    for kind in kinds:
        key = (kind.key, kind.block, kind.page)
        before = merged.get(key)
        merged[key] = kind if before is None else replace(before, count=before.count + kind.count)
    return tuple(merged.values())


def unpackable(demand: Demand) -> bool:
    """Whether vLLM refuses the layout: latents beside a recurrent state and a drafter whose pages are no multiple of
    theirs (`NotImplementedError: page size is not divisible`). Such a drafter needs a cache type that matches."""
    shape = demand.shape
    if shape is None or not shape.linear_layers:
        return False
    kinds, _ = _kinds(demand, shape)
    largest = max((kind.page for kind in kinds), default=0)
    return any(kind.latent and kind.page and largest % kind.page for kind in kinds)


def _unified(kinds: tuple[Kind, ...]) -> tuple[Kind, ...]:
    """All pages as large as the largest: more tokens to a page where it divides, else the page is padded."""
    largest = max(kind.page for kind in kinds)
    same = []
    for kind in kinds:
        if not kind.states and kind.page and largest % kind.page == 0:
            same.append(replace(kind, block=kind.block * (largest // kind.page), page=largest))
        else:
            same.append(replace(kind, page=largest))
    return _together(same)


def blocks_of(kind: Kind, groups: int, demand: Demand, context: int) -> int:
    """Block numbers one sequence of `context` tokens takes in a kind's groups."""
    if kind.states:
        return groups * kind.states
    if kind.window is None:
        return groups * whole(context, kind.block)
    held = min(kind.window - 1 + in_flight(demand), context)
    return groups * (whole(held, kind.block) + 1)


def in_flight(demand: Demand) -> int:
    """Tokens that are scheduled and not settled: a window's blocks are freed only behind them."""
    return demand.batch * (1 if older(demand.version, OVERLAPPED) else 2)
