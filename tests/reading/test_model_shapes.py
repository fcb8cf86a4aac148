"""Shapes of the models that people run: from the config.json and from the GGUF metadata that each has.

`model_facts.jsonl` holds what public logs and configurations say of 39 models and drafters, each row with
its sources. A row's fields are put into the words of each format, and must come back as the row says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator.gguf_facts import Plain, facts_of
from orchestrator.models import Format, Shape
from orchestrator.reading import config_shape
from orchestrator.reading.config_layers import Unclear
from orchestrator.reading.said import Said

ROWS = [json.loads(line) for line in (Path(__file__).parent / "model_facts.jsonl").read_text().splitlines()]
KNOWN = [
    row
    for row in ROWS
    if {"num_hidden_layers", "num_attention_heads", "num_key_value_heads"} <= row.keys()
    and "hybrid Mamba" not in row.get("note", "")
]
GEMMAS = [row for row in ROWS if "global_head_dim" in row]
REST = [row for row in ROWS if row not in KNOWN and row not in GEMMAS]
"""Rows that give no widths: sizes from logs only, heads that differ by layer, layers that are not listed."""
BYTES = 2
"""Of a number in bfloat16."""


def name(row: Mapping[str, Any]) -> str:
    return str(row["model"]).replace(" ", "_")


def of_config(config: Mapping[str, Any]) -> Shape | None:
    outer = Said(config)
    return config_shape.shape(outer, config_shape.inner(outer), mtp_layers=None, tied=None)


def of_gguf(arch: str, metadata: Mapping[str, Plain]) -> Shape | None:
    full: dict[str, Plain] = {f"{arch}.{key}": value for key, value in metadata.items()}
    facts = facts_of(
        path="/m", size=1, format=Format.GGUF, metadata={"general.architecture": arch, **full}, tensors=[], tokens=None
    )
    return facts.shape


def config_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row in the words of config.json."""
    names = {
        "num_hidden_layers": "num_hidden_layers", "hidden_size": "hidden_size",
        "num_attention_heads": "num_attention_heads",
        "num_key_value_heads": "num_key_value_heads", "head_dim": "head_dim", "vocab_size": "vocab_size",
        "max_position": "max_position_embeddings", "full_attention_interval": "full_attention_interval",
        "linear_num_key_heads": "linear_num_key_heads", "linear_num_value_heads": "linear_num_value_heads",
        "linear_key_head_dim": "linear_key_head_dim", "linear_value_head_dim": "linear_value_head_dim",
        "linear_conv_kernel_dim": "linear_conv_kernel_dim", "kv_lora_rank": "kv_lora_rank",
        "qk_rope_head_dim": "qk_rope_head_dim", "num_experts": "num_experts",
        "experts_per_token": "num_experts_per_tok",
        "torch_dtype": "torch_dtype", "sliding_window": "sliding_window", "mtp_layers": "mtp_num_hidden_layers",
    }  # fmt: skip
    return {theirs: row[ours] for ours, theirs in names.items() if ours in row}


def attention_bytes(shape: Shape) -> int:
    """Bytes of one token in the KV cache of all layers that see everything, in bfloat16."""
    full = shape.attention_layers - shape.sliding_layers
    width = shape.head_dim + (shape.value_dim or shape.head_dim)
    if shape.kv_lora_rank is not None:
        return full * (shape.kv_lora_rank + (shape.rope_head_dim or 0)) * BYTES
    return full * shape.kv_heads * width * BYTES


def test_every_row_is_looked_at() -> None:
    assert len(ROWS) == 39
    assert (len(KNOWN), len(GEMMAS), len(REST)) == (23, 3, 13)


@pytest.mark.parametrize("row", KNOWN, ids=name)
def test_config_json(row: Mapping[str, Any]) -> None:
    config = config_of(row)
    if "kv_lora_rank" in row:
        config |= {"qk_nope_head_dim": 128, "v_head_dim": 128}
    if "sliding_window" in row:
        config["model_type"] = {"gpt-oss-20b": "gpt_oss", "gpt-oss-120b": "gpt_oss"}.get(row["model"], "gemma3_text")
    shape = of_config(config)
    assert shape is not None
    said = {
        "num_hidden_layers": shape.layers, "hidden_size": shape.hidden, "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads, "vocab_size": shape.vocab, "max_position": shape.max_context,
        "linear_attention_layers": shape.linear_layers, "linear_num_key_heads": shape.linear_key_heads,
        "linear_num_value_heads": shape.linear_value_heads, "linear_key_head_dim": shape.linear_head_dim,
        "linear_value_head_dim": shape.linear_value_dim or shape.linear_head_dim,
        "linear_conv_kernel_dim": shape.conv_kernel, "kv_lora_rank": shape.kv_lora_rank,
        "qk_rope_head_dim": shape.rope_head_dim, "num_experts": shape.experts, "experts_per_token": shape.experts_used,
        "torch_dtype": shape.dtype, "sliding_window": shape.sliding_window, "sliding_layers": shape.sliding_layers,
        "mtp_layers": shape.mtp_layers,
    }  # fmt: skip
    assert {key: value for key, value in said.items() if key in row} == {k: row[k] for k in said if k in row}
    if "attention_layers" in row:
        assert shape.attention_layers - shape.sliding_layers == row["attention_layers"]
    if "head_dim" in row:
        assert shape.head_dim == row["head_dim"]


@pytest.mark.parametrize("row", KNOWN, ids=name)
def test_gguf_says_the_same(row: Mapping[str, Any]) -> None:
    mtp = row.get("mtp_layers", 0)
    layers = row["num_hidden_layers"]
    metadata: dict[str, Plain] = {"block_count": layers + mtp}
    names = {
        "hidden_size": "embedding_length", "num_attention_heads": "attention.head_count",
        "num_key_value_heads": "attention.head_count_kv", "max_position": "context_length", "vocab_size": "vocab_size",
        "num_experts": "expert_count", "experts_per_token": "expert_used_count",
        "linear_num_key_heads": "ssm.group_count", "linear_num_value_heads": "ssm.time_step_rank",
        "linear_key_head_dim": "ssm.state_size", "linear_conv_kernel_dim": "ssm.conv_kernel",
        "full_attention_interval": "full_attention_interval", "kv_lora_rank": "attention.kv_lora_rank",
        "qk_rope_head_dim": "rope.dimension_count", "sliding_window": "attention.sliding_window",
    }  # fmt: skip
    metadata |= {theirs: row[ours] for ours, theirs in names.items() if ours in row}
    if mtp:
        metadata["nextn_predict_layers"] = mtp
    if "head_dim" in row:
        metadata |= {"attention.key_length": row["head_dim"], "attention.value_length": row["head_dim"]}
    if "kv_lora_rank" in row:
        metadata |= {"attention.key_length_mla": 192, "attention.value_length_mla": 128}
    if "linear_value_head_dim" in row:
        metadata["ssm.inner_size"] = row["linear_num_value_heads"] * row["linear_value_head_dim"]
    arch = "gpt-oss" if str(row["model"]).startswith("gpt-oss") else "gemma3" if "sliding_window" in row else "qwen35"
    config = config_of(row)
    if "linear_attention_layers" in row and "full_attention_interval" not in row:
        metadata["full_attention_interval"] = 4
    if "kv_lora_rank" in row:
        config |= {"qk_nope_head_dim": 128, "v_head_dim": 128}
    if "sliding_window" in row:
        config["model_type"] = "gpt_oss" if arch == "gpt-oss" else "gemma3_text"
    theirs, ours = of_config(config), of_gguf(arch, metadata)
    assert theirs is not None
    assert ours is not None
    assert ours == theirs.model_copy(update={"dtype": None})


@pytest.mark.parametrize("row", REST, ids=name)
def test_what_is_not_said_is_unknown(row: Mapping[str, Any]) -> None:
    """Rows that do not say how wide a key is give no shape, and no exception."""
    config = config_of(row)
    if "hybrid Mamba" in row.get("note", ""):
        config["ssm_state_size"] = 128
        with pytest.raises(Unclear, match="does not say in which layers"):
            of_config(config)
        return
    assert of_config(config) is None


# those whose bytes are known

GEMMA = {
    "gemma-4-31b": (60, 5376, 32, 16, 4, 10), "gemma-4-26b-a4b": (30, 2816, 16, 8, 2, 5),
    "gemma-4-12b": (48, 3840, 16, 8, 1, 8),
}  # fmt: skip
"""Layers, width, heads, KV heads of sliding and of global layers, global layers. gemma-4-12b's one global KV head
reproduces the 68.00 MiB that llama.cpp logs (row's own note)."""


@pytest.mark.parametrize("model", GEMMA)
def test_gemma_4(model: str) -> None:
    """Global layers with other heads, and twice the width; llama.cpp and vLLM keep K and V though they are equal."""
    layers, width, heads, sliding_kv, global_kv, full = GEMMA[model]
    kinds = [("full_attention" if (i + 1) % 6 == 0 else "sliding_attention") for i in range(layers)]
    text = {
        "model_type": "gemma4_text", "num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads,
        "num_key_value_heads": sliding_kv, "head_dim": 256, "global_head_dim": 512, "attention_k_eq_v": True,
        "num_global_key_value_heads": global_kv, "sliding_window": 1024, "layer_types": kinds, "vocab_size": 262144,
        "max_position_embeddings": 262144, "tie_word_embeddings": True,
    }  # fmt: skip
    shape = of_config({"model_type": "gemma4", "text_config": text, "vision_config": {}})
    assert shape is not None
    row = next(r for r in ROWS if r["model"] == model)
    assert shape.attention_layers - shape.sliding_layers == full == row["attention_layers"]
    assert shape.sliding_layers == row["sliding_layers"]
    assert (shape.sliding_window, shape.head_dim) == (row["sliding_window"], row["global_head_dim"])
    assert shape.kv_heads == row.get("global_kv_heads", 1)
    assert (shape.sliding_kv_heads or shape.kv_heads, shape.sliding_head_dim) == (
        row["sliding_kv_heads"], row["sliding_head_dim"],
    )  # fmt: skip
    metadata: dict[str, Plain] = {
        "block_count": layers, "embedding_length": width, "attention.head_count": heads, "context_length": 262144,
        "attention.head_count_kv": tuple(global_kv if k == "full_attention" else sliding_kv for k in kinds),
        "attention.key_length": 512, "attention.value_length": 512, "attention.key_length_swa": 256,
        "attention.value_length_swa": 256, "attention.sliding_window": 1024, "vocab_size": 262144,
        "attention.sliding_window_pattern": tuple(k != "full_attention" for k in kinds),
    }  # fmt: skip
    assert of_gguf("gemma4", metadata) == shape.model_copy(update={"tied_embeddings": None})


@pytest.mark.parametrize(
    ("model", "bytes_a_token"),
    [
        ("Qwen/Qwen3.8-27B", 65536),
        ("Qwen/Qwen3.6-27B", 65536),
        ("Qwen3.5-27B", 65536),
        ("Qwen/Qwen3.6-35B-A3B", 20480),
        ("Kimi-K2 (K2.6 text config)", 70272),
        ("DeepSeek-R1 / V3 671B", 70272),
    ],
)
def test_bytes_a_token(model: str, bytes_a_token: int) -> None:
    """KV bytes of a token in bfloat16: the 27B and 35B hybrids as vLLM and llama.cpp log them (noonghunna/club-3090
    docs), Kimi-K2's 576 x 2 x 61 (vLLM's own log)."""
    row = next(r for r in ROWS if r["model"] == model)
    config = config_of(row) | ({"qk_nope_head_dim": 128, "v_head_dim": 128} if "kv_lora_rank" in row else {})
    shape = of_config(config)
    assert shape is not None
    assert attention_bytes(shape) == bytes_a_token


def test_ling_3() -> None:
    """42 layers, 7 of them gated MLA, 35 KDA; transformers' bailing_hybrid defaults: rank 512, rope 64, 8,064 bytes."""
    config = {
        "model_type": "bailing_hybrid", "num_hidden_layers": 42, "hidden_size": 2560, "num_attention_heads": 32,
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "head_dim": 128,
        "short_conv_kernel_size": 4, "layer_group_size": 6, "num_experts": 512, "num_experts_per_tok": 8,
        "num_nextn_predict_layers": 1, "max_position_embeddings": 262144, "vocab_size": 157184,
    }  # fmt: skip
    shape = of_config(config)
    assert shape is not None
    assert (shape.attention_layers, shape.linear_layers, shape.mtp_layers) == (7, 35, 1)
    assert (shape.linear_key_heads, shape.linear_value_heads, shape.linear_head_dim) == (32, 32, 128)
    assert attention_bytes(shape) == 8064
    metadata: dict[str, Plain] = {
        "block_count": 43, "nextn_predict_layers": 1, "embedding_length": 2560, "attention.head_count": 32,
        "attention.head_count_kv": tuple(1 if (i + 1) % 6 == 0 or i == 42 else 0 for i in range(43)),
        "attention.kv_lora_rank": 512, "attention.key_length": 576, "attention.key_length_mla": 192,
        "attention.value_length_mla": 128, "rope.dimension_count": 64, "kda.head_dim": 128, "ssm.conv_kernel": 4,
        "expert_count": 512, "expert_used_count": 8, "context_length": 262144, "vocab_size": 157184,
    }  # fmt: skip
    ours = of_gguf("bailingmoe3", metadata)
    assert ours == shape.model_copy(update={"kv_heads": 1})  # one latent row; the widths above count, not the heads


def test_deepseek_without_mla_keeps_all_heads() -> None:
    """An old GGUF names the rank and no unfolded width: llama.cpp logs 19200 MiB for 4096 tokens of V2.5."""
    metadata: dict[str, Plain] = {
        "block_count": 60, "embedding_length": 5120, "attention.head_count": 128, "attention.head_count_kv": 128,
        "attention.key_length": 192, "attention.value_length": 128, "attention.kv_lora_rank": 512,
        "rope.dimension_count": 64,
    }  # fmt: skip
    shape = of_gguf("deepseek2", metadata)
    assert shape is not None
    assert shape.kv_lora_rank is None
    assert attention_bytes(shape) * 4096 == 19200 << 20


def test_layers_without_heads() -> None:
    """Llama-3.1-Nemotron-Ultra-253B: 8 KV heads in some layers, none in others."""
    heads = tuple(8 if i % 3 == 0 else 0 for i in range(162))
    metadata: dict[str, Plain] = {
        "block_count": 162, "embedding_length": 16384, "attention.head_count": 128, "attention.head_count_kv": heads,
        "attention.key_length": 128, "attention.value_length": 128,
    }  # fmt: skip
    ours = of_gguf("deci", metadata)
    blocks = [{"attention": {"no_op": not n, "n_heads_in_group": 16 if n else None}} for n in heads]
    theirs = of_config(
        {"num_hidden_layers": 162, "hidden_size": 16384, "num_attention_heads": 128, "head_dim": 128,
         "block_configs": blocks}
    )  # fmt: skip
    assert ours is not None
    assert theirs is not None
    assert (theirs.attention_layers, theirs.kv_heads, theirs.kv_heads_by_layer) == (54, 8, ())
    assert (ours.attention_layers, ours.linear_layers, ours.kv_heads) == (54, 0, 8)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        # transformers 5.24.0's own defaults of each family
        ({"model_type": "mistral", "sliding_window": 4096}, {"sliding_layers": 8}),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, {"sliding_layers": 0}),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 6},
         {"sliding_layers": 2}),
        ({"model_type": "gemma2", "sliding_window": 4096}, {"sliding_layers": 4}),
        ({"model_type": "gemma3_text", "sliding_window": 512}, {"sliding_layers": 7}),
        ({"model_type": "exaone4", "sliding_window": 4096, "sliding_window_pattern": "LLLG"}, {"sliding_layers": 6}),
        ({"model_type": "gemma3n_text", "sliding_window": 512, "num_kv_shared_layers": 3},
         {"attention_layers": 5, "sliding_layers": 4}),
        ({"model_type": "mimo_v2_flash", "sliding_window": 128, "hybrid_layer_pattern": [0, 1, 1, 1, 0, 1, 1, 1],
          "swa_num_key_value_heads": 8, "v_head_dim": 32},
         {"sliding_layers": 6, "sliding_kv_heads": 8, "value_dim": 32}),
        ({"num_key_value_heads": [2, 2, 4, 4, 2, 2, 4, 4]},
         {"kv_heads": 4, "kv_heads_by_layer": (2, 2, 4, 4, 2, 2, 4, 4)}),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*M-ME", "mamba_num_heads": 16,
          "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4},
         {"attention_layers": 1, "linear_layers": 4, "linear_value_heads": 16, "linear_head_dim": 128,
          "linear_value_dim": 64, "linear_key_heads": 8}),
        ({"model_type": "jamba", "attn_layer_period": 4, "attn_layer_offset": 3, "mamba_d_state": 16, "mamba_expand": 2,
          "mamba_d_conv": 4},
         {"attention_layers": 2, "linear_layers": 6, "linear_head_dim": 16, "linear_value_dim": 1024}),
        ({"model_type": "kimi_linear", "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
          "linear_attn_config": {"kda_layers": [1, 2, 3, 5, 6, 7], "full_attn_layers": [4, 8], "head_dim": 128,
                                 "num_heads": 32, "short_conv_kernel_size": 4}},
         {"attention_layers": 2, "linear_layers": 6, "linear_key_heads": 32, "kv_lora_rank": 512}),
        ({"model_type": "lfm2", "conv_L_cache": 3,
          "layer_types": ["conv", "conv", "full_attention", "conv"] * 2},
         {"attention_layers": 2, "linear_layers": 6, "linear_head_dim": 0, "linear_value_dim": 512, "conv_kernel": 3}),
        ({"model_type": "minimax", "attn_type_list": [0, 0, 0, 1] * 2},
         {"attention_layers": 2, "linear_layers": 6, "linear_value_heads": 8, "conv_kernel": 1}),
        ({"model_type": "falcon_h1", "mamba_d_ssm": 512, "mamba_n_heads": 8, "mamba_d_head": 64, "mamba_d_state": 256},
         {"attention_layers": 8, "linear_layers": 8, "linear_head_dim": 256, "linear_value_dim": 64}),
        ({"model_type": "bamba", "attn_layer_indices": [2, 6], "mamba_n_heads": 8, "mamba_d_head": 64,
          "mamba_d_state": 128}, {"attention_layers": 2, "linear_layers": 6}),
        ({"model_type": "lfm2", "conv_L_cache": 3, "full_attn_idxs": [1, 5]},
         {"attention_layers": 2, "linear_layers": 6, "conv_kernel": 3}),
        ({"model_type": "dbrx", "num_key_value_heads": None, "attn_config": {"kv_n_heads": 4}}, {"kv_heads": 4}),
        ({"model_type": "step3_text", "num_key_value_heads": None, "num_attention_groups": 1}, {"kv_heads": 1}),
        # a width that is not said is not always the hidden state divided among the heads
        ({"model_type": "gemma3_text", "num_attention_heads": None, "num_key_value_heads": None, "sliding_window": 64},
         {"heads": 8, "kv_heads": 4, "head_dim": 256, "sliding_layers": 7}),
        ({"model_type": "qwen3"}, {"head_dim": 128}),
        ({"model_type": "qwen2"}, {"head_dim": 64}),
        ({"model_type": "phi4mm", "sliding_window": 262144, "max_position_embeddings": 131072}, {"sliding_layers": 0}),
        # keys that say nothing are not taken for a riddle
        ({"model_type": "smollm3", "sliding_window": None, "use_sliding_window": False, "num_local_experts": 4,
          "max_window_layers": 8, "add_cross_attention": False, "use_cla": False}, {"attention_layers": 8}),
    ],
    ids=lambda value: str(value.get("model_type", "by_layer"))[:20] if isinstance(value, dict) else None,
)  # fmt: skip
def test_families(config: dict[str, Any], expected: dict[str, object]) -> None:
    base = {"num_hidden_layers": 8, "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2}
    shape = of_config({**base, **config})
    assert shape is not None
    assert {key: getattr(shape, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"model_type": "recurrent_gemma", "attention_window_size": 2048}, "repeat a pattern"),
        ({"model_type": "longcat_flash", "kv_lora_rank": 512}, "attends twice"),
        ({"model_type": "mllama_text_model", "cross_attention_layers": [1, 3]}, "cross_attention_layers"),
        ({"model_type": "hunyuan", "use_cla": True, "cla_share_factor": 2}, "use_cla"),
        ({"model_type": "of-tomorrow", "ssm_cfg": {"d_state": 16}}, "ssm_cfg"),
        ({"model_type": "of-tomorrow", "local_attention": 128}, "local_attention"),
        ({"model_type": "of-tomorrow", "num_key_value_heads": None, "num_query_groups": 2}, "num_query_groups"),
        ({"model_type": "modernbert"}, "only decodes"),
        ({"model_type": "bart", "is_encoder_decoder": True}, "only decodes"),
    ],
    ids=lambda value: str(value.get("model_type")) if isinstance(value, dict) else None,
)
def test_what_is_not_understood_is_unknown_and_no_guess(config: dict[str, Any], why: str) -> None:
    base = {"num_hidden_layers": 8, "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2}
    with pytest.raises(Unclear, match=why):
        of_config({**base, **config})


@pytest.mark.parametrize(
    "wrong",
    [{"attention_layers": 5}, {"linear_layers": 5}, {"sliding_layers": 4, "attention_layers": 3, "sliding_window": 8},
     {"sliding_layers": 1}],
)  # fmt: skip
def test_a_shape_whose_numbers_do_not_go_together_is_none(wrong: dict[str, Any]) -> None:
    right: dict[str, Any] = {"layers": 4, "attention_layers": 4, "kv_heads": 1, "head_dim": 64}
    Shape(**right)
    with pytest.raises(ValueError, match="layers"):
        Shape(**{**right, **wrong})
