"""llama.cpp's KV cache: cells by kind of layer, the target's and the drafter's.

Sources: src/llama-context.cpp:292 (`n_ctx` padded to 256, divided over the slots and padded again when the cache is
not unified), src/llama-kv-cache.cpp (a row of keys and one of values a cell, layer and stream; layers without KV
heads cost nothing), src/llama-kv-cache-iswa.cpp (window x slots of a unified cache + ubatch, padded to 256),
common/speculative.cpp (the draft context has the target's cells; `cache_type_k` of the draft is f16 unless told).
21 logs agree within 0.001 %.
"""

from __future__ import annotations

from orchestrator.kinds import KvType
from orchestrator.memory_fit import recurrent
from orchestrator.memory_fit.demand import DRAFTING, Demand, llama_build
from orchestrator.memory_fit.sizes import pad, whole
from orchestrator.memory_fit.widths import Layers, attention
from orchestrator.plan import Method

PADDED = 256
PADDED_PLAIN = 32
"""The same without flash attention, in builds up to autumn 2025."""
WINDOWS_TRIMMED = 5430
"""The build since which sliding-window layers have a cache of their own (llama.cpp pull 13194, May 2025)."""
WINDOWS_PADDED = 6900
"""The build since which that cache is padded to 256 (llama.cpp issue 17037, autumn 2025); 128 + 512 was 640 before."""


def padding(demand: Demand) -> int:
    """What a length is padded to (`llama_kv_cache_get_padding` of the builds that knew two)."""
    build = llama_build(demand.version)
    narrow = not demand.flash_attention and build is not None and build < WINDOWS_PADDED
    return PADDED_PLAIN if narrow else PADDED


def cells(demand: Demand) -> int:
    """Cells of one stream: what a layer without a window keeps."""
    step = padding(demand)
    if demand.kv_unified:
        return pad(demand.cells or demand.context * demand.parallel, step)
    if demand.cells is not None:
        return pad(pad(demand.cells, step) // max(demand.parallel, 1), step)
    return pad(demand.context, step)


def streams(demand: Demand) -> int:
    """How many caches there are side by side."""
    return 1 if demand.kv_unified else demand.parallel


def window_cells(demand: Demand, window: int) -> int:
    """Cells of one stream in a layer with a sliding window."""
    full, build = cells(demand), llama_build(demand.version)
    if demand.swa_full or not demand.trims_windows or (build is not None and build < WINDOWS_TRIMMED):
        return full
    held = min(full, window * (demand.parallel if demand.kv_unified else 1) + demand.batch)
    return held if build is not None and build < WINDOWS_PADDED else pad(held, PADDED)


def _bytes(demand: Demand, kinds: tuple[Layers, ...], kv: KvType, kv_v: KvType) -> int:
    total = 0
    for kind in kinds:
        held = cells(demand) if kind.window is None else window_cells(demand, kind.window)
        total += kind.count * held * kind.token(kv, kv_v)
    return total * streams(demand)


def target(demand: Demand) -> int:
    """Bytes of the target's cache on one device."""
    shape = demand.shape
    if shape is None:
        return 0
    kinds = attention(shape, latent=demand.latent)
    total = _bytes(demand, kinds, demand.kv, demand.values)
    if demand.weights_on_device < 1:
        total = int(total * max(demand.weights_on_device, 0))
    return whole(total, demand.tensor_parallel)


def drafter(demand: Demand) -> int:
    """Bytes of the draft context's cache on one device: as many cells as the target's, f16 unless told, and no
    snapshots of its state (`n_rs_seq = 0`)."""
    if demand.method not in DRAFTING:
        return 0
    kv = demand.draft_kv or KvType.F16
    shape = demand.shape
    if demand.method is Method.MTP and demand.drafter_shape is None:
        if shape is None:
            return 0
        kinds = attention(shape, latent=demand.latent)
        return max(shape.mtp_layers, 1) * cells(demand) * streams(demand) * (kinds[0].token(kv, kv) if kinds else 0)
    own = demand.drafter_shape
    if own is None:
        return 0
    recurrent_state = own.linear_layers * recurrent.state_layer(own) * demand.parallel if own.linear_layers else 0
    return _bytes(demand, attention(own), kv, kv) + recurrent_state
