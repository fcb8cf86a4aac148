"""Which layers of a model keep a KV cache, which see only a window, which keep a recurrent state. Pure.

From config.json, whose authors say it in a dozen ways. Names of keys and their defaults: transformers
5.24.0 (models/*/configuration_*.py), vLLM 0.33.0 (transformers_utils, model_executor/models), llama.cpp
(src/models/*.cpp: `load_swa_pattern`). A way that is not known here is `Unclear`, never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from orchestrator.reading.said import MOST_LAYERS, BadKey, Said
from orchestrator.telling.amounts import count as counted


class Unclear(ValueError):
    """The model's memory cannot be told from its configuration; the message says why."""


class Layer(StrEnum):
    """What a layer keeps between tokens."""

    FULL = "full"
    SLIDING = "sliding"
    LINEAR = "linear"
    BOTH = "both"
    """Attention and a recurrent state side by side."""
    NONE = "none"


_TYPES: Mapping[str, Layer] = {
    "full_attention": Layer.FULL, "attention": Layer.FULL, "global_attention": Layer.FULL, "full": Layer.FULL,
    "sliding_attention": Layer.SLIDING, "local_attention": Layer.SLIDING, "chunked_attention": Layer.SLIDING,
    "linear_attention": Layer.LINEAR, "mamba": Layer.LINEAR, "mamba2": Layer.LINEAR, "kda": Layer.LINEAR,
    "recurrent": Layer.LINEAR, "conv": Layer.LINEAR, "hybrid": Layer.BOTH, "mlp": Layer.NONE, "moe": Layer.NONE,
}  # fmt: skip
_LETTERS = {"*": Layer.FULL, "M": Layer.LINEAR, "-": Layer.NONE, "E": Layer.NONE}
"""Nemotron-H's `hybrid_override_pattern`."""
_EVERY: Mapping[str, int] = {
    "gemma2": 2, "gemma3": 6, "gemma3_text": 6, "gemma3n_text": 5, "gemma4_text": 6, "gpt_oss": 2, "cohere2": 4,
    "exaone4": 4, "olmo3": 4, "afmoe": 4,
}  # fmt: skip
"""Of so many layers the last sees everything, where the configuration does not say."""
_ALL_SLIDING = frozenset({"mistral", "mixtral", "starcoder2", "phi3", "phimoe", "ministral"})
"""Models whose every layer has the window."""
_ON_REQUEST = frozenset({"qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen2_5_vl_text", "qwen2_vl"})
"""Models that have a window only with `use_sliding_window`."""
_OPAQUE = ("index_topk", "index_head_dim", "compress_ratios", "compress_ratio")
"""Keys of caches that hold more, or less, than keys and values (DeepSeek V3.2 and V4)."""
_OTHERWISE: Mapping[str, str] = {
    "longcat_flash": "each of its layers attends twice",
    "longcat_flash_ngram": "each of its layers attends twice",
    "recurrent_gemma": "its blocks repeat a pattern, and attend to a window",
}
"""Kinds of models whose layers are not what their number says."""
_TELLING = re.compile(
    r"(?:^|_)(?:ssm|mamba|recurrent|lru|r?wkv|windows?|local|cla|kv_reuse|kv_shar\w*|cross_attention|cross_attn"
    r"|block_types|indexer|linear_att\w*|att\w*_every|compress\w*|retention)(?:_|$)|^index_(?:topk|block|local|kpool)|_attn_(?:idx|indices)"
)
"""Keys that tell of layers which do not simply attend to everything. Where one is said and nothing else was
understood of a model's layers, they are not guessed."""
_UNTELLING = frozenset({
    "sliding_window", "sliding_window_size", "use_sliding_window", "max_window_layers", "num_local_experts",
    "sliding_window_pattern", "global_attn_every_n_layers",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Layers:
    """The layers in order, and the width of the window in tokens where some have one."""

    kinds: tuple[Layer, ...]
    window: int | None = None

    def having(self, *kinds: Layer) -> int:
        """How many are of one of these kinds."""
        return sum(1 for kind in self.kinds if kind in kinds)


def layers(said: Said, model_type: str) -> Layers | None:
    """The layers of a model; None when their number is not said. Raises `BadKey`, `Unclear`."""
    _understood(said, model_type)
    count = said.count("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    listed = _listed(said)
    if listed is not None and (count is None or len(listed) != count):
        if model_type == "nemotron_h" or count is None:
            count = len(listed)  # transformers takes the list for it
        elif len(listed) < count:
            raise BadKey(f"{said.where}layer_types has {counted(len(listed), 'entry', 'entries')} for {count} layers")
        else:
            listed = listed[:count]
    if count is None:
        return None
    if count > MOST_LAYERS:
        raise BadKey(f"{said.where}num_hidden_layers is {count}, which cannot be")
    kinds = listed or _linear(said, model_type, count) or _windowed(said, model_type, count)
    if listed is None and set(kinds) == {Layer.FULL}:
        _nothing_told(said)
    kinds = _without_shared(said, kinds)
    window = _window(said) if Layer.SLIDING in kinds else None
    if Layer.SLIDING in kinds and window is None:
        raise BadKey(f"{said.where}sliding_window is missing, though layers are said to have one")
    return Layers(kinds, window)


def _understood(said: Said, model_type: str) -> None:
    """Raises `Unclear` for a kind of model that is known not to be understood here."""
    for key in _OPAQUE:
        if said.has(key):
            raise Unclear(f"its cache is laid out by {said.where}{key}, which is not understood here")
    if model_type in _OTHERWISE:
        raise Unclear(_OTHERWISE[model_type])
    if "bert" in model_type or said.flag("is_encoder_decoder"):
        raise Unclear(f"{model_type or 'it'} is no model that only decodes")


def _nothing_told(said: Said) -> None:
    """Raises `Unclear` where a key tells of layers that do not simply attend to everything."""
    for key in said.like(_TELLING):
        if key not in _UNTELLING:
            raise Unclear(f"{said.where}{key} tells of layers that are not understood here")


def _listed(said: Said) -> tuple[Layer, ...] | None:
    """The layers where each is named."""
    names = said.words("layer_types", "layers_block_type")
    if names:
        for name in names:
            if name not in _TYPES:
                raise Unclear(f"a layer of type {name[:60]!r} is not known here")
        return tuple(_TYPES[name] for name in names)
    pattern = said.word("hybrid_override_pattern")
    if pattern is not None:
        if set(pattern) - set(_LETTERS):
            raise Unclear(f"{said.where}hybrid_override_pattern {pattern[:40]!r} is not understood here")
        return tuple(_LETTERS[letter] for letter in pattern)
    windowed = said.counts("hybrid_layer_pattern")  # MiMo-V2: 1 has the window
    if windowed:
        return tuple(Layer.SLIDING if one else Layer.FULL for one in windowed)
    attending = said.counts("attn_type_list")  # MiniMax-Text-01: 1 attends
    if attending:
        return tuple(Layer.FULL if one else Layer.LINEAR for one in attending)
    blocks = said.objects("block_configs")  # DeciLM and its like: layers without attention
    if blocks:
        return tuple(Layer.NONE if _no_attention(block) else Layer.FULL for block in blocks)
    return None


def _no_attention(block: Said) -> bool:
    attention = block.part("attention")
    if attention is None:
        raise Unclear(f"{block.where} says nothing of attention")
    return bool(attention.flag("no_op")) or bool(attention.flag("replace_with_linear"))


def _linear(said: Said, model_type: str, count: int) -> tuple[Layer, ...] | None:
    """Hybrids that say how often a layer attends, or which."""
    if model_type == "falcon_h1":
        return (Layer.BOTH,) * count
    attending = set(said.counts("attn_layer_indices", "full_attn_idxs"))  # Bamba, LFM2
    if attending:
        return tuple(Layer.FULL if i in attending else Layer.LINEAR for i in range(count))
    part = said.part("linear_attn_config")
    if part is not None:  # Kimi: layers are counted from 1
        full = set(part.counts("full_attn_layers"))
        if part.has("kda_layers"):
            return tuple(Layer.FULL if i + 1 in full else Layer.LINEAR for i in range(count))
        raise Unclear(f"{part.where}kda_layers is missing")
    group = said.count("layer_group_size")
    if group is not None:  # Ling: the last of each group attends, and what is left over at the end
        whole = count // group * group
        return tuple(Layer.FULL if (i + 1) % group == 0 or i >= whole else Layer.LINEAR for i in range(count))
    interval = said.count("full_attention_interval")
    if interval is None and said.has("linear_num_value_heads"):
        interval = 4  # Qwen3-Next and Qwen3.5 in transformers
    if interval is not None:
        return tuple(Layer.LINEAR if (i + 1) % interval else Layer.FULL for i in range(count))
    period = said.count("attn_layer_period")
    if period is not None:  # Jamba
        offset = said.count("attn_layer_offset", least=0) or 0
        return tuple(Layer.FULL if i % period == offset else Layer.LINEAR for i in range(count))
    if said.has("mamba_d_state", "mamba_d_ssm", "ssm_state_size", "state_size", "conv_L_cache"):
        raise Unclear("it keeps a recurrent state, and does not say in which layers")
    return None


def _windowed(said: Said, model_type: str, count: int) -> tuple[Layer, ...]:
    """Layers that all attend, some of them to a window only."""
    everywhere = (Layer.FULL,) * count
    if _window(said) is None or said.flag("use_sliding_window") is False:
        return everywhere
    if model_type in _ON_REQUEST:
        if not said.flag("use_sliding_window"):
            return everywhere
        full = min(said.count("max_window_layers", least=0) or 0, count)
        return (Layer.FULL,) * full + (Layer.SLIDING,) * (count - full)
    pattern = said.raw("sliding_window_pattern", "global_attn_every_n_layers")
    if isinstance(pattern, str):  # EXAONE 4: "LLLG"
        if not pattern or set(pattern) - {"L", "G"}:
            raise Unclear(f"{said.where}sliding_window_pattern {pattern[:40]!r} is not understood here")
        letters = (pattern * count)[:count]
        return tuple(Layer.SLIDING if letter == "L" else Layer.FULL for letter in letters)
    every = said.count("sliding_window_pattern", "global_attn_every_n_layers") or _EVERY.get(model_type)
    if every is not None:
        return tuple(Layer.SLIDING if (i + 1) % every else Layer.FULL for i in range(count))
    if model_type in _ALL_SLIDING:
        return (Layer.SLIDING,) * count
    longest = said.count("max_position_embeddings")
    if longest is not None and (_window(said) or 0) >= longest:
        return everywhere  # Phi-4-multimodal: a window that no text fills
    raise Unclear(f"it has a sliding window, and {model_type or 'its kind'} does not say in which layers")


def _window(said: Said) -> int | None:
    windows = said.counts("sliding_window", "attention_chunk_size", "sliding_window_size")
    return max(windows, default=0) or None


def _without_shared(said: Said, kinds: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """The last layers of some Gemmas use the cache of earlier ones."""
    shared = said.count("num_kv_shared_layers", least=0) or 0
    if shared >= len(kinds):
        return kinds
    own = len(kinds) - shared
    return kinds[:own] + (Layer.NONE,) * shared
