"""A shape from a row's `facts`: the field names of model files, over a known model's where it is the same model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.fit.rows import RowError
from orchestrator.models import Shape

LATENT_WIDTH = 192
"""Of a key that is made out of a latent: what all of DeepSeek's have."""


def shape_of(facts: Mapping[str, Any], base: Shape | None) -> tuple[Shape | None, tuple[str, ...]]:
    """A shape from a row's facts, over a known one where there is one; and which facts are missing for it.

    Raises `RowError` for facts that contradict each other.
    """
    if not facts:
        return base, ()
    if base is not None and facts.get("num_hidden_layers", base.layers) != base.layers:
        base = None  # the facts are of another model than the name's
    given: dict[str, Any] = {} if base is None else base.model_dump()
    layers = facts.get("num_hidden_layers", given.get("layers"))
    for key, name in _PLAIN.items():
        if key in facts:
            given[name] = facts[key]
    _heads(facts, given)
    missing = tuple(
        key
        for key, name in (
            ("num_hidden_layers", "layers"),
            ("num_key_value_heads", "kv_heads"),
            ("head_dim", "head_dim"),
        )
        if name not in given
    )
    if missing:
        return None, missing
    _kinds(facts, given, layers or 0)
    _consistent(given)
    return Shape(**given), ()


def _heads(facts: Mapping[str, Any], given: dict[str, Any]) -> None:
    """KV heads and their width; layers that differ give a list, latents need none."""
    latent = "kv_lora_rank" in facts
    heads = facts.get("num_key_value_heads", facts.get("num_attention_heads") if latent else None)
    if isinstance(heads, tuple):
        given["kv_heads_by_layer"], given["kv_heads"] = heads, max(heads, default=0)
        given.setdefault("attention_layers", sum(1 for n in heads if n))
    elif heads is not None:
        given["kv_heads"] = heads
    if "global_kv_heads" in facts:
        given["kv_heads"] = facts["global_kv_heads"]
    width = facts.get("global_head_dim", facts.get("head_dim", _width(facts)))
    if width is not None or latent:
        given["head_dim"] = width or LATENT_WIDTH


_PLAIN = {
    "num_hidden_layers": "layers", "hidden_size": "hidden", "intermediate_size": "intermediate",
    "vocab_size": "vocab", "num_attention_heads": "heads", "v_head_dim": "value_dim", "kv_lora_rank": "kv_lora_rank",
    "qk_rope_head_dim": "rope_head_dim", "max_position": "max_context", "mtp_layers": "mtp_layers",
    "num_experts": "experts", "experts_per_token": "experts_used", "sliding_window": "sliding_window",
    "sliding_layers": "sliding_layers", "sliding_kv_heads": "sliding_kv_heads",
    "sliding_head_dim": "sliding_head_dim", "linear_num_key_heads": "linear_key_heads",
    "linear_num_value_heads": "linear_value_heads", "linear_key_head_dim": "linear_head_dim",
    "linear_value_head_dim": "linear_value_dim", "linear_conv_kernel_dim": "conv_kernel",
    "tie_word_embeddings": "tied_embeddings", "torch_dtype": "dtype",
}  # fmt: skip


def _width(facts: Mapping[str, Any]) -> int | None:
    hidden, heads = facts.get("hidden_size"), facts.get("num_attention_heads")
    return hidden // heads if hidden and heads and hidden % heads == 0 else None


def _kinds(facts: Mapping[str, Any], given: dict[str, Any], layers: int) -> None:
    """How many layers attend at full length, in a window, or keep a state."""
    types = facts.get("layer_types")
    if types is not None:
        given["linear_layers"] = sum(1 for kind in types if "linear" in kind or "mamba" in kind)
        given["sliding_layers"] = sum(1 for kind in types if "sliding" in kind)
        given["attention_layers"] = len(types) - given["linear_layers"]
    full, linear = facts.get("attention_layers"), facts.get("linear_attention_layers")
    every = facts.get("full_attention_interval")
    if linear is None and full is None and every is not None and "linear_num_value_heads" in facts:
        full = layers // every
    if linear is None and full is not None and "linear_num_value_heads" in facts:
        linear = layers - full
    if linear is not None:
        given["linear_layers"] = linear
        full = layers - linear if full is None else full
    if full is not None:
        # in this format `attention_layers` are those without a window
        given["attention_layers"] = full + given.get("sliding_layers", 0)
    given.setdefault("attention_layers", layers)
    given.setdefault("conv_kernel", 4)


def _consistent(given: Mapping[str, Any]) -> None:
    layers = given["layers"]
    if given.get("sliding_layers", 0) > given["attention_layers"]:
        raise RowError("facts.sliding_layers", f"{given['sliding_layers']} of {given['attention_layers']} layers")
    if given["attention_layers"] + given.get("linear_layers", 0) > layers:
        raise RowError(
            "facts.attention_layers",
            f"{given['attention_layers']} with attention and {given.get('linear_layers', 0)} without are more than "
            f"num_hidden_layers, {layers}",
        )
    if given.get("sliding_layers") and given.get("sliding_window") is None:
        raise RowError("facts.sliding_window", "is missing, though there are sliding layers")
    if len(given.get("kv_heads_by_layer", ())) > layers:
        raise RowError("facts.num_key_value_heads", f"more entries than num_hidden_layers, {layers}")
