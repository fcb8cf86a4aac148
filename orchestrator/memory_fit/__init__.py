"""How many bytes a plan will take, by kind, before anything is loaded. Pure arithmetic.

Exact in form: weights (file bytes), KV cache, recurrent state, drafter. Calibrated and
meant to err on the high side: compute buffers, CUDA graphs, context overhead; their
numbers are priors from public measurements, named where they stand:

- [kv]     llama.cpp: KV and recurrent buffers agree with logs to 0.01 % (30 comparisons)
- [page]   vLLM 0.33.0 v1/core: hybrid models page attention and recurrent state alike
- [peak]   vLLM activation peaks and `total_consumed` of logs on RTX 3090 and 5090
- [syv]    syv-ai/qwen38-27b-rtx3090 @2ae239fc: one RTX 3090, vLLM 0.27.1
- [shg]    Strix Halo: 1.9-2.5 GiB unaccounted on Vulkan (GTT)
- [fit]    llama.cpp's own `--fit`: 1 GiB stays free on each discrete GPU
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.kinds import Backend, KvType
from orchestrator.models import Shape
from orchestrator.plan import ExpectedMemory, Method

MIB = 1 << 20
GIB = 1 << 30

SNAPSHOTS = frozenset({Method.MTP, Method.EAGLE3, Method.DFLASH, Method.DSPARK})
"""Methods for which llama.cpp keeps one extra recurrent state a drafted token (common/common.h)."""


_KV_BITS = {
    KvType.F32: 32.0, KvType.F16: 16.0, KvType.BF16: 16.0, KvType.FP8: 8.0, KvType.FP8_E4M3: 8.0, KvType.FP8_E5M2: 8.0,
    KvType.INT8: 8.25, KvType.INT4: 4.25, KvType.Q8_0: 8.5, KvType.Q5_1: 6.0, KvType.Q5_0: 5.5, KvType.Q4_1: 5.0,
    KvType.Q4_0: 4.5, KvType.IQ4_NL: 4.5,
}  # fmt: skip
"""Bits a number with its scales: q8_0 34/32 bytes, q4_0 18/32; int8: one fp32 scale a head and token."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What is to run. `context` is tokens a sequence, `parallel` sequences at once; bytes else.

    `shape` None means that nothing is known but the weights: the caller must then
    treat the answer as a lower bound. `state_bits` is the width of vLLM's recurrent
    state (32, or 16 with --mamba-ssm-cache-dtype float16).
    """

    weights: int
    shape: Shape | None
    context: int
    parallel: int
    method: Method = Method.NONE
    draft_tokens: int = 0
    drafter_bytes: int = 0
    drafter_shape: Shape | None = None
    backend: Backend = Backend.CPU
    kv: KvType = KvType.F16
    state_bits: int = 32
    batch: int = 512
    """llama.cpp's ubatch, vLLM's max_num_batched_tokens."""
    eager: bool = False
    """vLLM without CUDA graphs."""


def attention_token(shape: Shape, kv: KvType) -> int:
    """Bytes one token takes in one layer's KV cache. MLA: one row of latent + rope, no V."""
    if shape.kv_lora_rank is not None:
        width = shape.kv_lora_rank + (shape.rope_head_dim or 64)
    else:
        width = 2 * shape.kv_heads * shape.head_dim
    return -(-round(width * _KV_BITS[kv]) // 8)


def state_layer(shape: Shape, *, extra_conv: int = 0, conv_bytes: int = 4, state_bytes: int = 4) -> int:
    """Bytes of one sequence's recurrent state in one linear layer: convolution window + outer product.

    [kv] llama.cpp keeps all of it in f32; vLLM the window in the model's dtype, longer by
    the drafted tokens.
    """
    inner = shape.linear_value_heads * shape.linear_head_dim
    channels = inner + 2 * shape.linear_key_heads * shape.linear_head_dim
    window = (shape.conv_kernel - 1 + extra_conv) * channels * conv_bytes
    return window + inner * shape.linear_head_dim * state_bytes


def _pad(tokens: int, to: int) -> int:
    return -(-tokens // to) * to


def llama_cpp(demand: Demand, *, budget: int | None = None) -> ExpectedMemory:
    """llama-server: every layer offloaded, one stream of `context` cells a slot, flash attention on."""
    shape = demand.shape
    kv = state = 0
    vocab, hidden = 0, 0
    if shape is not None:
        cells = _pad(demand.context, 256) * demand.parallel
        kv = cells * attention_token(shape, demand.kv) * shape.attention_layers
        if demand.method is Method.MTP:
            kv += cells * attention_token(shape, KvType.F16) * max(shape.mtp_layers, 1)
        snapshots = demand.draft_tokens if demand.method in SNAPSHOTS else 0
        state = shape.linear_layers * state_layer(shape) * demand.parallel * (1 + snapshots)
        vocab, hidden = shape.vocab or 0, shape.hidden or 0
    drafter = demand.drafter_bytes + _drafter_kv(demand)
    compute = _llama_compute(demand, vocab, hidden)
    total = demand.weights + kv + state + drafter + compute
    return ExpectedMemory(demand.weights, kv, state, drafter, compute, total, budget)


def _drafter_kv(demand: Demand) -> int:
    """A drafter's cache has as many cells as its target's and stays f16. Sliding windows count as full."""
    shape = demand.drafter_shape
    if shape is None:
        return 0
    cells = _pad(demand.context, 256) * demand.parallel
    recurrent = shape.linear_layers * state_layer(shape) * demand.parallel
    return cells * attention_token(shape, KvType.F16) * shape.attention_layers + recurrent


PROMPT_CACHE = {Backend.CPU: 256 * MIB, Backend.CUDA: 2048 * MIB, Backend.ROCM: 512 * MIB, Backend.VULKAN: 512 * MIB}
"""What llama.cpp may keep of past prompts, in system memory; its own default is 8 GiB."""

_LLAMA_OVERHEAD = {
    Backend.CPU: 96 * MIB,  # 34-68 MiB seen with the wheel's server in a container
    Backend.CUDA: 580 * MIB,  # context 150-250 MiB, runtime peak 110-330 MiB
    Backend.ROCM: 2560 * MIB,  # [shg]
    Backend.VULKAN: 2560 * MIB,  # [shg]; 80 MiB on discrete cards
}


def _llama_compute(demand: Demand, vocab: int, hidden: int) -> int:
    """Compute buffers and the process itself.

    Worst ubatch: logits for the whole of it (builds before mid-2026; 485 of 497-501 MiB seen
    with a vocabulary of 248k) + a mask of 4 bytes a cell and token + 16 MiB. A drafter or MTP
    head has a context of its own: 0.254 MiB a ubatch token seen for width 5120 (MTP), or logits
    for the drafted tokens, whichever is more.
    """
    batch = min(demand.batch, demand.context)
    cells = _pad(demand.context, 256) * demand.parallel
    work = vocab * batch * 4 + batch * cells * 4 // max(demand.parallel, 1) + 16 * MIB
    if demand.method is not Method.NONE and demand.method is not Method.NGRAM:
        head = int(0.254 * MIB * batch * hidden / 5120)
        work += max(head, vocab * 4 * (demand.draft_tokens + 1) * demand.parallel) + 16 * MIB
    shared = 0 if demand.backend is Backend.CUDA else PROMPT_CACHE[demand.backend]
    return work + _LLAMA_OVERHEAD[demand.backend] + shared


@dataclass(frozen=True, slots=True)
class Pool:
    """vLLM's KV pool: `block_bytes` is what one block number costs over all layers of a group."""

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


def vllm_pool(demand: Demand) -> Pool | None:
    """The pool that holds `parallel` sequences of `context` tokens. None without a shape. [page]

    Hybrids: the attention block grows until its page holds one layer's recurrent state, both
    kinds of layer then share pages of one size; layers are put into groups of equal size,
    padded; one block number costs a page in each layer of a group. A drafter's layers and an
    MTP head's join the attention layers. No prefix caching (one state a sequence, not two).
    """
    shape = demand.shape
    if shape is None:
        return None
    token = attention_token(shape, demand.kv)
    attention = shape.attention_layers + _drafting_layers(demand, token)
    if not shape.linear_layers:
        block = 16
        blocks = -(-demand.context // block)
        return Pool(block, block * token * attention, blocks, 0, demand.parallel * blocks + 1)
    lookahead = demand.draft_tokens if demand.method is not Method.NONE else 0
    state = state_layer(shape, extra_conv=lookahead, conv_bytes=2, state_bytes=demand.state_bits // 8)
    if not attention or not token:
        every = state * shape.linear_layers
        return Pool(demand.context, every, 0, 1 + lookahead, demand.parallel * (1 + lookahead) + 1)
    block = max(-(-state // (16 * token)), 1) * 16
    low, high = sorted((attention, shape.linear_layers))
    group = high if high < 1.5 * low else max(low, 1)
    tokens = -(-attention // group) * -(-demand.context // block)
    states = -(-shape.linear_layers // group) * (1 + lookahead)
    return Pool(block, block * token * group, tokens, states, demand.parallel * (tokens + states) + 1)


def _drafting_layers(demand: Demand, token: int) -> int:
    """Attention layers that drafting adds, in units of the target's layers (pages have one size)."""
    if demand.method is Method.MTP:
        return 1
    drafter = demand.drafter_shape
    if drafter is None:
        return 0
    return -(-drafter.attention_layers * max(attention_token(drafter, demand.kv), token) // token)


def vllm(demand: Demand, *, budget: int | None = None) -> ExpectedMemory:
    """vLLM V1 with an absolute KV pool; drafter weights are part of the process, graphs come on top."""
    pool = vllm_pool(demand)
    kv = state = 0
    if pool is not None:
        state = demand.parallel * pool.state_blocks * pool.block_bytes
        kv = pool.bytes - state
    compute = _vllm_compute(demand)
    total = demand.weights + kv + state + demand.drafter_bytes + compute
    return ExpectedMemory(demand.weights, kv, state, demand.drafter_bytes, compute, total, budget)


def _vllm_compute(demand: Demand) -> int:
    """[peak] 0.35 GiB of context and workspaces is the most seen on discrete cards; unified memory
    adds 2.5 GiB [shg]. A forward of 8192 tokens peaks at 1.8 GiB for a width of 5120: 0.22 MiB a
    token, in proportion to the width. Graphs: 0.1-0.5 GiB for few small shapes, 1.4 GiB [syv] at
    8 sequences x 8 tokens, 2.3 GiB at most."""
    hidden = 5120 if demand.shape is None or demand.shape.hidden is None else demand.shape.hidden
    work = int(0.225 * MIB * demand.batch * max(hidden, 2048) / 5120)
    context = int(0.35 * GIB) if demand.backend is Backend.CUDA else int(2.85 * GIB)
    graphs = 0
    if not demand.eager:
        shapes = demand.parallel * (1 + (demand.draft_tokens if demand.method is not Method.NONE else 0))
        graphs = min(int(0.5 * GIB + 0.0141 * GIB * shapes), int(2.3 * GIB))
    return work + context + graphs


def reserve(backend: Backend, *, unified: bool, total: int | None) -> int:
    """Bytes of the free memory that a plan leaves alone.

    Discrete GPU: 1 GiB [fit]. Unified memory: 4 GiB, for everything else lives in it. CPU:
    5 % of the machine, at least 384 MiB.
    """
    if backend is Backend.CPU:
        return max(384 * MIB, (total or 0) // 20)
    return 4 * GIB if unified else GIB


def fits(expected: ExpectedMemory) -> bool:
    """Whether the total is within the budget; an unknown budget refuses nothing."""
    return expected.budget is None or expected.total <= expected.budget


def gigabytes(count: int) -> str:
    """`19.50 GB`: for sentences. GB is 1e9 bytes, as models are sold."""
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def explain(expected: ExpectedMemory) -> str:
    """The sentence with the numbers: what it takes, of what."""
    kinds = (
        ("weights", expected.weights), ("KV", expected.kv), ("recurrent state", expected.state),
        ("drafter", expected.drafter), ("compute", expected.compute),
    )  # fmt: skip
    parts = " + ".join(f"{name} {gigabytes(count)}" for name, count in kinds if count)
    of = "" if expected.budget is None else f" of {gigabytes(expected.budget)} ({expected.budget} bytes)"
    return f"{gigabytes(expected.total)} ({expected.total} bytes){of}: {parts}"
