"""Bytes of one token's keys and values in one layer, by what they are stored as.

Sources: ggml's block types (ggml-common.h: 32 numbers share a scale; q8_0 34 bytes, q5_1 24, q5_0 22, q4_1 20,
q4_0 and iq4_nl 18); vLLM's `AttentionSpec` and Triton's `customize_spec` (0.32.0, v1/attention/backends/
triton_attn.py:284: one fp32 scale a head, for keys and for values); heads past the tensor-parallel ranks are
replicated (vLLM `get_num_kv_heads`, SGLang likewise), and a latent (MLA) is one row that no rank divides.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from orchestrator.kinds import KvType
from orchestrator.models import Shape

_BLOCKS = {
    KvType.Q8_0: 34, KvType.Q5_1: 24, KvType.Q5_0: 22, KvType.Q4_1: 20, KvType.Q4_0: 18, KvType.IQ4_NL: 18,
}  # fmt: skip
"""Bytes of 32 numbers."""
_PLAIN = {
    KvType.F32: 4, KvType.F16: 2, KvType.BF16: 2, KvType.FP8: 1, KvType.FP8_E4M3: 1, KvType.FP8_E5M2: 1,
}  # fmt: skip
_SCALE = 4
"""An fp32 scale a head and token."""
DEFAULT_ROPE = 64
"""The rope part of a latent in every published MLA model (DeepSeek, Kimi, GLM)."""


def row(width: int, heads: int, kv: KvType) -> int:
    """Bytes of `heads` x `width` numbers of one token. A block type's row is whole blocks."""
    if kv in _PLAIN:
        return heads * width * _PLAIN[kv]
    if kv in _BLOCKS:
        return -(-heads * width // 32) * _BLOCKS[kv]
    return heads * ((width if kv is KvType.INT8 else width // 2) + _SCALE)


def per_rank(heads: int, ranks: int) -> int:
    """KV heads that one rank holds: at least one, for past `ranks` = `heads` they are replicated."""
    return 0 if heads == 0 else max(1, -(-heads // ranks))


@dataclass(frozen=True, slots=True)
class Layers:
    """Attention layers that are alike: how many, heads and widths on one rank, and the window if they have one.

    `values` 0: a latent, which has no values of its own.
    """

    count: int
    heads: int
    keys: int
    values: int
    window: int | None = None
    latent: bool = False

    def token(self, kv: KvType, kv_v: KvType) -> int:
        """Bytes a token takes in one of these layers."""
        keys = row(self.keys, self.heads, kv)
        return keys + row(self.values, self.heads, kv_v) if self.values else keys


@lru_cache(maxsize=1024)
def attention(shape: Shape, ranks: int = 1, *, latent: bool = True) -> tuple[Layers, ...]:
    """The attention layers with a cache, by kind, the ones without a window first."""
    if shape.kv_lora_rank is not None and latent:
        width = shape.kv_lora_rank + (shape.rope_head_dim or DEFAULT_ROPE)
        return (Layers(shape.attention_layers, 1, width, 0, latent=True),)
    values = shape.value_dim or shape.head_dim
    if shape.kv_heads_by_layer:
        kinds = Counter(heads for heads in shape.kv_heads_by_layer if heads)
        return tuple(
            Layers(count, per_rank(heads, ranks), shape.head_dim, values) for heads, count in sorted(kinds.items())
        )
    found = []
    windowed_layers = min(shape.sliding_layers, shape.attention_layers)
    whole_length = shape.attention_layers - windowed_layers
    if whole_length:
        found.append(Layers(whole_length, per_rank(shape.kv_heads, ranks), shape.head_dim, values))
    if windowed_layers:
        heads = per_rank(shape.sliding_kv_heads or shape.kv_heads, ranks)
        keys = shape.sliding_head_dim or shape.head_dim
        windowed = keys if shape.sliding_head_dim else values
        found.append(Layers(windowed_layers, heads, keys, windowed, shape.sliding_window))
    return tuple(found)


def attention_token(shape: Shape, kv: KvType, *, kv_v: KvType | None = None, ranks: int = 1) -> int:
    """Bytes one token takes in one layer's KV cache on one rank (the layers without a window, where both exist)."""
    kinds = attention(shape, ranks)
    return kinds[0].token(kv, kv_v or kv) if kinds else 0
