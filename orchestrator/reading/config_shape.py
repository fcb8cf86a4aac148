"""From config.json to a `Shape`. Pure.

Multimodal models nest what matters; `inner` finds it. Widths that a configuration leaves out are
those that transformers 5.24.0 and vLLM 0.33.0 would take; what cannot be told is None.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from orchestrator.models import Shape
from orchestrator.reading.config_layers import Layer, Layers, Unclear, layers
from orchestrator.reading.said import BadKey, Said

_NESTED = ("text_config", "thinker_config", "llm_config", "language_config", "transformer_layer_config", "text_model")
"""Where models of several parts keep their language model (Qwen-Omni: thinker_config.text_config)."""
_DEPTH = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "layer_types", "hybrid_override_pattern")
_DTYPES = {"bfloat16", "float16", "float32"}
_SHORT = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32"}

_HEAD_DIM = {
    "afmoe": 128, "cohere2_moe": 128, "cwm": 128, "ernie4_5": 128, "gemma": 256, "gemma2": 256, "gemma3_text": 256,
    "gemma3n_text": 256, "gemma4_text": 256, "glm": 128, "glm4": 128, "gpt_oss": 64, "helium": 128, "hy_v3": 128,
    "laguna": 128, "llama4_text": 128, "mellum": 128, "mimo_v2_flash": 192, "minimax_m2": 128, "ministral3": 128,
    "nemotron_h": 128, "qwen3": 128, "qwen3_5_text": 256, "qwen3_5_moe_text": 256, "qwen3_next": 256,
    "qwen3_vl_text": 128, "seed_oss": 128, "solar_open": 128, "vaultgemma": 256, "zaya": 128,
}  # fmt: skip
"""What these kinds take for a width that is not said; all others divide the hidden state among their heads."""
_HEADS = {"gemma3_text": (8, 4)}
"""Query and KV heads likewise: Gemma 3 4B says neither."""
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num", "num_attention_groups")
_GROUPED = re.compile(r"(?:kv|key_value)\w*heads|heads?_kv|(?:query|attention|attn)_groups")
"""Keys that tell of KV heads. Where one is said under a name that is not known, they are not guessed."""


@dataclass(frozen=True, slots=True)
class Linear:
    """Widths of a recurrent layer: see `Shape`."""

    key_heads: int
    value_heads: int
    head_dim: int
    value_dim: int | None
    kernel: int


def inner(said: Said) -> Said:
    """The part of a configuration that describes the language model. Raises `BadKey`."""
    for _ in range(4):
        nested = next((part for key in _NESTED if (part := said.part(key)) is not None), None)
        if nested is None or (said.has(*_DEPTH) and not nested.has(*_DEPTH)):
            return said
        said = nested
    return said


def shape(outer: Said, said: Said, *, mtp_layers: int | None, tied: bool | None) -> Shape | None:
    """The shape that a configuration describes; None when it does not say how many layers there are.

    `mtp_layers` and `tied` are what the tensors say, where they were looked at; they win.
    Raises `BadKey` for a value that makes no sense, `Unclear` for a cache that is not understood.
    """
    model_type = said.word("model_type") or outer.word("model_type") or ""
    found = layers(said, model_type)
    if found is None:
        return None
    hidden = said.count("hidden_size", "n_embd", "d_model", "dim")
    heads = said.count("num_attention_heads", "n_head", "n_heads") or _HEADS.get(model_type, (None, None))[0]
    rank = said.count("kv_lora_rank", least=0) or None
    attention = found.having(Layer.FULL, Layer.SLIDING, Layer.BOTH)
    linear = found.having(Layer.LINEAR, Layer.BOTH)
    width, value = _widths(said, model_type, hidden, heads, rank)
    kv, by_layer = _kv_heads(said, model_type, heads, found)
    if attention and rank is None and not (kv and width):
        return None  # how wide a key is, nobody says
    recurrent = _linear(said, hidden, heads) if linear else Linear(0, 0, 0, None, 4)
    sliding = found.having(Layer.SLIDING)
    own = _sliding(said, kv, width) if sliding else _Own(None, None, kv, width)
    return _made(
        layers=len(found.kinds),
        hidden=hidden,
        intermediate=max(said.counts("intermediate_size", "ffn_hidden_size", "n_inner"), default=0) or None,
        vocab=vocab(outer, said),
        heads=heads,
        attention_layers=attention,
        kv_heads=own.full_heads,
        head_dim=own.full_dim,
        value_dim=value if value != own.full_dim else None,
        kv_heads_by_layer=by_layer,
        sliding_layers=sliding,
        sliding_window=found.window,
        sliding_kv_heads=own.heads,
        sliding_head_dim=own.dim,
        linear_layers=linear,
        linear_key_heads=recurrent.key_heads,
        linear_value_heads=recurrent.value_heads,
        linear_head_dim=recurrent.head_dim,
        linear_value_dim=recurrent.value_dim,
        conv_kernel=recurrent.kernel,
        kv_lora_rank=rank,
        rope_head_dim=None if rank is None else said.count("qk_rope_head_dim"),
        max_context=said.count("max_position_embeddings", "model_max_length", "n_positions", "max_seq_len"),
        mtp_layers=declared_mtp(outer, said) if mtp_layers is None else mtp_layers,
        experts=_experts(said),
        experts_used=max(
            said.counts("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_top_k"),
            default=0,
        )
        or None,
        tied_embeddings=declared_tied(outer, said) if tied is None else tied,
        dtype=dtype(outer, said),
    )


def _made(**values: Any) -> Shape:
    try:
        return Shape(**values)
    except ValueError as error:  # values that each are possible, and together are not
        raise BadKey(f"the sizes do not go together: {str(error).splitlines()[-1][:120]}") from error


def vocab(outer: Said, said: Said) -> int | None:
    """Rows of the embedding."""
    return said.count("vocab_size", least=0) or outer.count("vocab_size", least=0) or None


def declared_mtp(outer: Said, said: Said) -> int:
    """Layers of an MTP head that the configuration declares, whether or not their weights are there."""
    names = ("mtp_num_hidden_layers", "num_nextn_predict_layers", "num_mtp_layers", "n_predict")
    return said.count(*names, least=0) or outer.count(*names, least=0) or 0


def declared_tied(outer: Said, said: Said) -> bool | None:
    """Whether embedding and output head are one, if the configuration says so."""
    own = said.flag("tie_word_embeddings")
    return outer.flag("tie_word_embeddings") if own is None else own


def dtype(outer: Said, said: Said) -> str | None:
    """What the checkpoint computes in; None when it is not said, or nothing that is known."""
    word = next((w for one in (said, outer) if (w := one.word("dtype", "torch_dtype")) is not None), "")
    word = word.removeprefix("torch.").lower()
    word = _SHORT.get(word, word)
    return word if word in _DTYPES else None


def _experts(said: Said) -> int | None:
    names = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    return max(said.counts(*names), default=0) or None


def _widths(
    said: Said, model_type: str, hidden: int | None, heads: int | None, rank: int | None
) -> tuple[int, int | None]:
    """Widths of a key and of a value. With MLA those of its unfolded form."""
    nope, rope = said.count("qk_nope_head_dim", least=0), said.count("qk_rope_head_dim", least=0)
    if rank is not None and nope is not None and rope is not None:
        return nope + rope, said.count("v_head_dim", least=0) or None
    width = said.count("head_dim", "hidden_size_per_head", "kv_channels", "attention_head_dim", least=0)
    width = width or _HEAD_DIM.get(model_type)
    if not width and hidden and heads:
        width = hidden // heads
    return width or 0, said.count("v_head_dim", least=0) or None


def _kv_heads(said: Said, model_type: str, heads: int | None, found: Layers) -> tuple[int, tuple[int, ...]]:
    """KV heads, and a number a layer where attending layers differ. Raises `Unclear` where they are said under a
    name that is not known: as many as query heads would be a guess."""
    several = said.counts(*_KV_HEADS, least=0)
    part = said.part("attn_config")  # DBRX, MPT
    if not several and part is not None:
        several = part.counts("kv_n_heads")
    blocks = said.objects("block_configs")
    if blocks and heads:
        several = tuple(_block_heads(block, heads) for block in blocks)
    if not several and said.flag("multi_query"):
        several = (1,)
    if not several and model_type in _HEADS:
        several = (_HEADS[model_type][1],)
    if not several and (unknown := said.like(_GROUPED)):
        raise Unclear(f"{said.where}{unknown[0]} tells of KV heads, and is not understood here")
    if len(several) <= 1:
        return (several[0] if several else heads or 0), ()
    if len(several) < len(found.kinds):
        raise BadKey(f"{said.where}num_key_value_heads has {len(several)} entries for {len(found.kinds)} layers")
    attending = (Layer.FULL, Layer.SLIDING, Layer.BOTH)
    by_layer = tuple(n if kind in attending else 0 for n, kind in zip(several, found.kinds, strict=False))
    differ = len({n for n in by_layer if n}) > 1
    return max(by_layer), by_layer if differ else ()


def _block_heads(block: Said, heads: int) -> int:
    attention = block.part("attention")
    group = None if attention is None else attention.count("n_heads_in_group")
    if group is None:
        return 0
    return max(heads // group, 1)


@dataclass(frozen=True, slots=True)
class _Own:
    """KV heads and width of layers with a window, where they are others than those of full layers."""

    heads: int | None
    dim: int | None
    full_heads: int
    full_dim: int


def _sliding(said: Said, kv: int, width: int) -> _Own:
    """Gemma 4 describes its sliding layers and says what global ones have instead; MiMo-V2 the other way round."""
    global_dim = said.count("global_head_dim")
    if global_dim is not None or said.has("num_global_key_value_heads"):
        alike = said.flag("attention_k_eq_v") is False  # only layers that share K and V have heads of their own
        heads = kv if alike else said.count("num_global_key_value_heads") or kv
        dim = width if global_dim is None else global_dim
        return _Own(kv if heads != kv else None, width if dim != width else None, heads, dim)
    heads = said.count("swa_num_key_value_heads") or kv
    dim = said.count("swa_head_dim") or width
    return _Own(heads if heads != kv else None, dim if dim != width else None, kv, width)


def _linear(said: Said, hidden: int | None, heads: int | None) -> Linear:
    """Widths of the recurrent layers, by family. Raises `Unclear` when none is recognised."""
    values = said.count("linear_num_value_heads")
    if values is not None:  # Gated DeltaNet: Qwen3-Next, Qwen3.5
        width = said.count("linear_key_head_dim") or 128
        deep = said.count("linear_value_head_dim") or 128
        keys = said.count("linear_num_key_heads") or 16
        return Linear(keys, values, width, _other(deep, width), said.count("linear_conv_kernel_dim") or 4)
    part = said.part("linear_attn_config")
    if part is not None:  # KDA: Kimi Linear
        across, count = part.count("head_dim"), part.count("num_heads")
        if across is None or count is None:
            raise Unclear(f"{part.where}head_dim and num_heads are needed for its recurrent state")
        return Linear(count, count, across, None, part.count("short_conv_kernel_size") or 4)
    if said.has("layer_group_size") and heads:  # KDA (Ling-3) with a convolution, Lightning (Ling-2.5) without
        width = said.count("head_dim") or (hidden or 0) // heads
        kernel = said.count("short_conv_kernel_size")
        return Linear(heads, heads, width, None, kernel or 1)
    if said.has("attn_type_list") and heads:  # Lightning attention: MiniMax-Text-01
        return Linear(0, heads, said.count("head_dim") or (hidden or 0) // heads, None, 1)
    return _mamba(said, hidden)


def _mamba(said: Said, hidden: int | None) -> Linear:
    state = said.count("mamba_d_state", "ssm_state_size", "state_size")
    kernel = said.count("mamba_d_conv", "conv_kernel") or 4
    heads = said.count("mamba_num_heads", "mamba_n_heads")
    if state is not None and heads is not None:  # Mamba 2: Nemotron-H, Bamba, Granite 4, Falcon-H1
        width = said.count("mamba_head_dim", "mamba_d_head")
        width = width or (said.count("mamba_d_ssm") or (said.count("mamba_expand") or 2) * (hidden or 0)) // heads
        groups = said.count("mamba_n_groups", "n_groups", "mamba_num_groups") or 1
        return Linear(groups, heads, state, _other(width, state), kernel)
    if state is not None and hidden:  # Mamba 1: Jamba
        wide = (said.count("mamba_expand", "expand") or 2) * hidden
        return Linear(0, 1, state, said.count("mamba_d_ssm") or wide, kernel)
    window = said.count("conv_L_cache")
    if window is not None and hidden:  # LFM2: a short convolution and nothing else
        return Linear(0, 1, 0, hidden, window)
    raise Unclear("its recurrent layers are of a kind that is not known here")


def _other(value: int, width: int) -> int | None:
    return value if value and value != width else None
