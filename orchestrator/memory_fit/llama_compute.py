"""llama.cpp's compute buffers on one device: the peak of the worst ubatch's graph.

Closed only in its large terms; the rest is calibrated. Sources: src/llama-context.cpp:672 (outputs reserved for
`min(n_tokens, n_outputs_max)`: since mid-2026 the server asks for as many as it samples, before that for the whole
ubatch), logs of both sides of that change, ik_llama.cpp discussions 334, 344, 370 (logits + one hidden state of the
ubatch, to 0.1 MiB), llama.cpp rows without flash attention (scores in f32, to 1 %), and the 512 MiB that CUDA takes
beyond a quantised cache's own growth from 131k to 262k tokens on 3090 Ti and 5090: one layer's cache in f16.
"""

from __future__ import annotations

from orchestrator.kinds import Backend, KvType
from orchestrator.memory_fit.calibration import CALIBRATION, NONE, Estimate
from orchestrator.memory_fit.demand import DRAFTING, Demand, llama_build
from orchestrator.memory_fit.llama_kv import cells, window_cells
from orchestrator.memory_fit.sizes import MIB
from orchestrator.memory_fit.widths import attention
from orchestrator.models import Shape
from orchestrator.plan import Method

OUTPUTS_AS_SAMPLED = 10_000
"""The build since which logits are reserved only for what is sampled (July 2026; b9849 did not, b10358 did)."""
MASK_IN_F16 = 9_500
"""The build since which the mask is f16 with flash attention (Vulkan b9010 and b5781 f32, b9849 f16)."""
WIDTH = 5120
"""The width that constants a token are calibrated at."""
_QUANTISED = frozenset(
    {KvType.Q8_0, KvType.Q5_1, KvType.Q5_0, KvType.Q4_1, KvType.Q4_0, KvType.IQ4_NL},
)


def target(demand: Demand) -> Estimate:
    """The target context's buffer on each device (a pipeline over devices reserves it on each)."""
    shape = demand.shape
    if shape is None:
        return Estimate(0, 16 * MIB, 32 * MIB)
    batch = min(demand.batch, max(demand.context, 1))
    width, vocab = shape.hidden or 0, shape.vocab or 0
    build = llama_build(demand.version)
    graph = CALIBRATION.llama_compute_base.plus(CALIBRATION.llama_compute_token.times(batch * width / WIDTH))
    outputs = demand.parallel * (1 + demand.drafted)
    logits = vocab * 4 * min(outputs, batch)
    if build is not None and build < OUTPUTS_AS_SAMPLED:
        whole_batch = vocab * batch * 4 + width * batch * 4
        if not demand.flash_attention and demand.trims_windows and shape.kv_lora_rank is None:
            return NONE.plus(max(whole_batch, _attending(demand, shape, batch)))
        graph = Estimate(max(graph.low, whole_batch), max(graph.mid, whole_batch), max(graph.high, whole_batch))
        logits = 0
    return graph.plus(logits, _masks(demand, shape, batch, build), _scores(demand, shape, batch))


def _attending(demand: Demand, shape: Shape, batch: int) -> int:
    """The largest step without flash attention: scores, mask and four hidden states in f32. The logits come after it
    in the same memory (Llama-3-8B, 8192 tokens: 512 + 16 + 32 = 560 MiB as printed; Llama-2-7B, 4096: 296)."""
    return (
        (shape.heads or 0) * batch * cells(demand) * 4 + cells(demand) * batch * 4 + 4 * (shape.hidden or 0) * batch * 4
    )


def _masks(demand: Demand, shape: Shape, batch: int, build: int | None) -> Estimate:
    """A number a cell and token, of full and of windowed layers each. (ik_llama.cpp keeps it in system memory.)"""
    if not demand.trims_windows:
        return NONE
    held = cells(demand)
    if shape.sliding_layers and shape.sliding_window is not None:
        held += window_cells(demand, shape.sliding_window)
    if not demand.flash_attention or (build is not None and build < MASK_IN_F16):
        return CALIBRATION.llama_mask_bytes.times(0).plus(held * batch * 4)
    return CALIBRATION.llama_mask_bytes.times(held * batch)


def _scores(demand: Demand, shape: Shape, batch: int) -> Estimate:
    """Without flash attention every head's scores over the whole cache; with latents the absorbed queries."""
    heads = shape.heads or 0
    if demand.latent and shape.kv_lora_rank is not None:
        if not demand.trims_windows:
            return _expanded(demand, heads, shape)
        absorbed = heads * batch * (2 * shape.kv_lora_rank + (shape.rope_head_dim or 64)) * 4
        return NONE.plus(absorbed + (0 if demand.flash_attention else heads * batch * cells(demand) * 4))
    return NONE if demand.flash_attention else NONE.plus(heads * batch * cells(demand) * 4)


def _expanded(demand: Demand, heads: int, shape: Shape) -> Estimate:
    """ik_llama.cpp makes keys and values of all heads out of the latents, in f16 for the whole cache, and works on
    as many heads at a time as -amb allows."""
    wide = heads * ((shape.head_dim or 192) + (shape.value_dim or 128)) * 2 * cells(demand)
    if demand.attention_cap is not None:
        return NONE.plus(wide + demand.attention_cap)
    return CALIBRATION.ik_mla_bytes.times(heads * cells(demand)).plus(wide)


def dequantised(demand: Demand) -> Estimate:
    """CUDA's attention works on f16: one layer of a quantised cache is turned into it at a time, in a pool that
    grows when it serves and is in no buffer that the log prints."""
    shape = demand.shape
    if shape is None or demand.backend not in (Backend.CUDA, Backend.ROCM) or not demand.flash_attention:
        return NONE
    if demand.kv not in _QUANTISED and demand.values not in _QUANTISED:
        return NONE
    largest = 0
    for kind in attention(shape, latent=demand.latent):
        held = cells(demand) if kind.window is None else window_cells(demand, kind.window)
        largest = max(largest, held * kind.token(KvType.F16, KvType.F16))
    return Estimate(0, largest, largest)


def drafter(demand: Demand) -> Estimate:
    """The draft context's own buffer: its ubatch, its mask, and logits of what it proposes."""
    if demand.method not in DRAFTING or demand.shape is None:
        return NONE
    batch = min(demand.batch, max(demand.context, 1))
    shape = demand.shape if demand.method is Method.MTP else demand.drafter_shape or demand.shape
    width, vocab = shape.hidden or demand.shape.hidden or 0, shape.vocab or demand.shape.vocab or 0
    proposed = demand.parallel * (1 + demand.draft_tokens if demand.method in (Method.DFLASH, Method.DSPARK) else 1)
    return CALIBRATION.llama_mtp_token.times(batch * width / WIDTH).plus(
        vocab * 4 * proposed, CALIBRATION.llama_mask_bytes.times(cells(demand) * batch)
    )
