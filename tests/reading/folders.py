"""Model folders as the hub has them, with headers of real size and files of holes: no byte of weights is written."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

Tensors: TypeAlias = Mapping[str, tuple[str, Sequence[int]]]
"""Name to (type, shape)."""
BYTES = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4, "U8": 1, "F8_E4M3": 1}

QWEN38: dict[str, Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "tie_word_embeddings": False,
    "text_config": {
        "model_type": "qwen3_5_text", "num_hidden_layers": 64, "hidden_size": 5120, "intermediate_size": 17408,
        "num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256, "full_attention_interval": 4,
        "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "vocab_size": 248320,
        "max_position_embeddings": 262144, "mtp_num_hidden_layers": 1, "dtype": "bfloat16", "eos_token_id": 248044,
    },
    "vision_config": {"model_type": "qwen3_5", "depth": 27, "hidden_size": 1152},
}  # fmt: skip


def header(tensors: Tensors) -> tuple[bytes, int]:
    """A file's head, length included, and how many bytes of data follow."""
    found: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, dims) in tensors.items():
        size = prod(dims) * BYTES[dtype]
        found[name] = {"dtype": dtype, "shape": list(dims), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(found).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, at


def safetensors(path: Path, tensors: Tensors) -> Path:
    """A file with these tensors, all of it a hole behind the header."""
    head, data = header(tensors)
    path.write_bytes(head)
    os.truncate(path, len(head) + data)
    return path


def model(
    folder: Path, config: Mapping[str, Any], tensors: Tensors, *, shards: int = 1, **files: Mapping[str, Any]
) -> Path:
    """A folder: config.json, weights in so many shards with their index, and further JSON files by their stems."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    if shards == 1:
        safetensors(folder / "model.safetensors", tensors)
        return folder
    names = list(tensors)
    where: dict[str, str] = {}
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        mine = {name: tensors[name] for name in names[number::shards]}
        safetensors(folder / file, mine)
        where |= dict.fromkeys(mine, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return folder


def plain(layers: int = 2, width: int = 64, vocab: int = 128, dtype: str = "BF16") -> dict[str, tuple[str, list[int]]]:
    """Tensors of a small model without anything special."""
    found: dict[str, tuple[str, list[int]]] = {
        "model.embed_tokens.weight": (dtype, [vocab, width]),
        "model.norm.weight": (dtype, [width]),
        "lm_head.weight": (dtype, [vocab, width]),
    }
    for number in range(layers):
        found[f"model.layers.{number}.self_attn.q_proj.weight"] = (dtype, [width, width])
    return found


def small(**more: Any) -> dict[str, Any]:
    """The configuration that goes with `plain`."""
    return {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 2, "hidden_size": 64,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 128,
        "max_position_embeddings": 4096, "tie_word_embeddings": False, "dtype": "bfloat16", **more,
    }  # fmt: skip


def qwen38(dtype: str = "BF16", *, mtp: bool = True, vision: bool = True) -> dict[str, tuple[str, list[int]]]:
    """About as many tensors as Qwen3.8-27B has (1,200), of the sizes that matter."""
    found: dict[str, tuple[str, list[int]]] = {
        "model.language_model.embed_tokens.weight": ("BF16", [248320, 5120]),
        "model.language_model.norm.weight": ("BF16", [5120]),
        "lm_head.weight": ("BF16", [248320, 5120]),
    }
    for layer in range(64):
        base = f"model.language_model.layers.{layer}."
        for part in ("gate_proj", "up_proj"):
            found[f"{base}mlp.{part}.weight"] = (dtype, [17408, 5120])
        found[f"{base}mlp.down_proj.weight"] = (dtype, [5120, 17408])
        found |= {f"{base}norm_{n}.weight": ("BF16", [5120]) for n in range(12)}
    if mtp:
        found["mtp.fc.weight"] = ("BF16", [5120, 10240])
        found["mtp.layers.0.mlp.gate_proj.weight"] = ("BF16", [17408, 5120])
    if vision:
        found |= {f"model.visual.blocks.{n}.attn.qkv.weight": ("BF16", [3456, 1152]) for n in range(27)}
    return found
