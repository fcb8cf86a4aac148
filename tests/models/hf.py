"""The reciting models as Hugging Face folders, for vLLM: `python -m tests.models.hf FOLDER`.

The same weights as the GGUF models' (`targets`, `drafters`), under the names that vLLM wants; safetensors are
written by hand, so numpy is enough, and two runs write the same bytes. All are float32 and about a megabyte.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.models import drafters, tokenizer
from tests.models.drafters import BLOCK, Attention
from tests.models.parts import FFN, HEAD, LAYERS, WIDTH, Array, Wrong, embedding, output_head
from tests.models.tokenizer import CHAT_TEMPLATE, END, IDS, MASK, MERGES, PAD, SPECIAL, TOKENS, VOCABULARY

Tensors = dict[str, Array]

TARGET = "target"
"""A plain Qwen3; `TARGET_MTP` is a MiMo, whose MTP layer is right."""
TARGET_MTP = "target-mtp"
DRAFT = "draft"
"""A draft model that is right; `DRAFT_BAD` never is."""
DRAFT_BAD = "draft-bad"
DFLASH = "dflash"
"""A DFlash drafter, block 8, all 7 right; of `DFLASH_3` the first 3."""
DFLASH_3 = "dflash-3"
EAGLE3 = "eagle3"
DSPARK = "dspark"
"""Metadata of a DSpark drafter, and of a DFlash drafter whose heads two devices can share: for argument parsers."""
DFLASH_EVEN = "dflash-even"


def _common(architecture: str, kind: str, *, layers: int, heads: int, kv_heads: int, base: float) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": kind,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "rope_theta": base,
        "hidden_size": WIDTH,
        "intermediate_size": FFN,
        "head_dim": HEAD,
        "vocab_size": VOCABULARY,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "dtype": "float32",
        "torch_dtype": "float32",
        "eos_token_id": END,
        "bos_token_id": None,
        "initializer_range": 0.02,
        "use_cache": True,
    }


def _whole(seed: int) -> Callable[[int, int], Array]:
    random = np.random.default_rng(seed)
    return lambda rows, columns: random.standard_normal((rows, columns)) / np.sqrt(columns)


def _layer(prefix: str, noise: Callable[[int, int], Array], heads: int, kv_heads: int) -> Tensors:
    """A block that computes, and adds nothing."""
    return {
        f"{prefix}input_layernorm.weight": np.ones(WIDTH),
        f"{prefix}post_attention_layernorm.weight": np.ones(WIDTH),
        f"{prefix}self_attn.q_proj.weight": noise(heads * HEAD, WIDTH),
        f"{prefix}self_attn.k_proj.weight": noise(kv_heads * HEAD, WIDTH),
        f"{prefix}self_attn.v_proj.weight": noise(kv_heads * HEAD, WIDTH),
        f"{prefix}self_attn.o_proj.weight": np.zeros((WIDTH, heads * HEAD)),
        f"{prefix}mlp.gate_proj.weight": noise(FFN, WIDTH),
        f"{prefix}mlp.up_proj.weight": noise(FFN, WIDTH),
        f"{prefix}mlp.down_proj.weight": np.zeros((WIDTH, FFN)),
    }


def qwen3(folder: Path, seed: int, *, layers: int = LAYERS, step: int = 1, wrong: Wrong | None = None) -> None:
    """A plain Qwen3 that recites the first cycle. `step` 2 recites every second character."""
    noise = _whole(seed)
    tensors: Tensors = {
        "model.embed_tokens.weight": embedding(wrong),
        "model.norm.weight": np.ones(WIDTH),
        "lm_head.weight": output_head(step),
    }
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        tensors |= _layer(prefix, noise, 4, 2)
        tensors |= {f"{prefix}self_attn.{name}_norm.weight": np.ones(HEAD) for name in ("q", "k")}
    config = _common("Qwen3ForCausalLM", "qwen3", layers=layers, heads=4, kv_heads=2, base=1e6)
    _write(folder, config | {"sliding_window": None, "use_sliding_window": False}, tensors)


def mimo_mtp(folder: Path, seed: int) -> None:
    """A MiMo (blocks of Qwen2) with one layer of multi-token prediction, which is right."""
    noise = _whole(seed)
    tensors: Tensors = {
        "model.embed_tokens.weight": embedding(),
        "model.norm.weight": np.ones(WIDTH),
        "lm_head.weight": output_head(),
    }
    prefixes = [*(f"model.layers.{layer}." for layer in range(LAYERS)), "model.mtp_layers.0."]
    for prefix in prefixes:
        tensors |= _layer(prefix, noise, 2, 2)
        tensors |= {f"{prefix}self_attn.{name}_proj.bias": np.zeros(2 * HEAD) for name in ("q", "k", "v")}
    head = prefixes[-1]
    tensors |= {f"{head}{name}_layernorm.weight": np.ones(WIDTH) for name in ("token", "hidden", "final")}
    tensors[f"{head}input_proj.weight"] = np.concatenate([np.zeros((WIDTH, WIDTH)), np.eye(WIDTH)], 1)
    config = _common("MiMoForCausalLM", "qwen2", layers=LAYERS, heads=2, kv_heads=2, base=1e6)
    config |= {"num_nextn_predict_layers": 1, "use_sliding_window": False, "sliding_window": None}
    _write(folder, config, tensors)


def dflash(folder: Path, *, right: int = BLOCK - 1) -> None:
    """A DFlash drafter, of which the first `right` of 7 drafted tokens are right."""
    tensors = _drafter("layers.0.", drafters.dflash_attention(right))
    tensors |= {
        "fc.weight": np.zeros((WIDTH, 3 * WIDTH)),
        "hidden_norm.weight": np.ones(WIDTH),
        "norm.weight": np.ones(WIDTH),
    }
    base, spread = drafters.DFLASH_BASE, drafters.DFLASH_SPREAD
    config = _common("DFlashDraftModel", "qwen3", layers=1, heads=BLOCK - 1, kv_heads=1, base=base)
    config |= {
        "rope_scaling": {"rope_type": "linear", "factor": 1 / spread},
        "block_size": BLOCK,
        "num_target_layers": LAYERS,
        "layer_types": ["full_attention"],
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [0, 1, 2]},
    }
    _write(folder, config, tensors)


def eagle3(folder: Path) -> None:
    """An EAGLE-3 drafter that is right."""
    prefix = "midlayer."
    tensors = _drafter(prefix, drafters.eagle3_attention())
    for name in ("q", "k"):
        del tensors[f"{prefix}self_attn.{name}_norm.weight"]
    tensors |= {
        "fc.weight": np.zeros((WIDTH, 3 * WIDTH)),
        "norm.weight": np.ones(WIDTH),
        "lm_head.weight": output_head(),
        "embed_tokens.weight": embedding(),
        f"{prefix}hidden_norm.weight": np.ones(WIDTH),
    }
    config = _common("LlamaForCausalLMEagle3", "llama", layers=1, heads=2, kv_heads=2, base=4.0)
    config |= {
        "draft_vocab_size": VOCABULARY,
        "norm_before_residual": True,
        "mlp_bias": False,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3], "use_aux_hidden_state": True},
    }
    _write(folder, config, tensors)


def dspark(folder: Path) -> None:
    """The metadata of a DSpark drafter, with weights that nothing reads."""
    config = _common("Qwen3DSparkModel", "qwen3", layers=1, heads=2, kv_heads=2, base=1e4)
    config |= {
        "block_size": BLOCK,
        "num_target_layers": LAYERS,
        "layer_types": ["full_attention"],
        "mask_token_id": MASK,
        "target_layer_ids": [0, 1, 2],
        "markov_rank": WIDTH,
        "markov_head_type": "vanilla",
        "sample_from_anchor": True,
        "dspark_config": {"mask_token_id": MASK, "target_layer_ids": [0, 1, 2], "markov_rank": WIDTH},
    }
    _write(folder, config, {"norm.weight": np.ones(WIDTH)})


def dflash_even(folder: Path) -> None:
    """The metadata of a DFlash drafter with 8 heads, and weights that nothing reads."""
    config = _common("DFlashDraftModel", "qwen3", layers=1, heads=BLOCK, kv_heads=2, base=1e4)
    config |= {
        "block_size": BLOCK,
        "num_target_layers": LAYERS,
        "layer_types": ["full_attention"],
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [0, 1, 2]},
    }
    _write(folder, config, {"norm.weight": np.ones(WIDTH)})


def _drafter(prefix: str, layer: Attention) -> Tensors:
    """One layer whose attention does all, and a feed-forward part that does nothing."""
    return {
        f"{prefix}input_layernorm.weight": np.ones(WIDTH),
        f"{prefix}post_attention_layernorm.weight": np.ones(WIDTH),
        f"{prefix}self_attn.q_norm.weight": np.full(HEAD, layer.gain),
        f"{prefix}self_attn.k_norm.weight": np.ones(HEAD),
        f"{prefix}self_attn.q_proj.weight": layer.query,
        f"{prefix}self_attn.k_proj.weight": layer.key,
        f"{prefix}self_attn.v_proj.weight": layer.value,
        f"{prefix}self_attn.o_proj.weight": layer.out,
        f"{prefix}mlp.gate_proj.weight": np.zeros((FFN, WIDTH)),
        f"{prefix}mlp.up_proj.weight": np.zeros((FFN, WIDTH)),
        f"{prefix}mlp.down_proj.weight": np.zeros((WIDTH, FFN)),
    }


def save(path: Path, tensors: Mapping[str, Array]) -> None:
    """A safetensors file of float32 tensors, in the order given."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    blobs: list[bytes] = []
    end = 0
    for name, values in tensors.items():
        data = np.ascontiguousarray(values, dtype="<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [end, end + len(data)]}
        end += len(data)
        blobs.append(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def _write(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Array]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save(folder / "model.safetensors", tensors)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = [
        {"id": IDS[token], "content": token, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False}
        for token in SPECIAL
    ]  # fmt: skip
    model = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
        "vocab": {token: number for number, token in enumerate(TOKENS) if token not in SPECIAL},
        "merges": [merge.split(" ") for merge in MERGES],
    }  # fmt: skip
    files: dict[str, Mapping[str, Any]] = {
        "config.json": config,
        "tokenizer.json": {
            "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level, "model": model,
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIAL[2], "pad_token": SPECIAL[0],
            "model_max_length": 32768, "clean_up_tokenization_spaces": False, "chat_template": CHAT_TEMPLATE,
        },
        "generation_config.json": {"eos_token_id": END, "pad_token_id": PAD, "do_sample": False},
    }  # fmt: skip
    for name, data in files.items():
        (folder / name).write_text(json.dumps(data, indent=1))


MODELS: dict[str, Callable[[Path], None]] = {
    TARGET: lambda folder: qwen3(folder, 1),
    TARGET_MTP: lambda folder: mimo_mtp(folder, 2),
    DRAFT: lambda folder: qwen3(folder, 4, layers=1),
    DRAFT_BAD: lambda folder: qwen3(folder, 4, layers=1, step=2),
    DFLASH: dflash,
    DFLASH_3: lambda folder: dflash(folder, right=3),
    EAGLE3: eagle3,
    DSPARK: dspark,
    DFLASH_EVEN: dflash_even,
}
"""How to write each folder."""

assert len(TOKENS) == tokenizer.VOCABULARY


def generate(folder: Path, names: Iterable[str] = MODELS) -> dict[str, Path]:
    """Write these models as folders below this one; name to path."""
    written = {}
    for name in names:
        MODELS[name](folder / name)
        written[name] = folder / name
    return written


if __name__ == "__main__":
    for path in generate(Path(sys.argv[1])).values():
        print(path)
