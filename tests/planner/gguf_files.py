"""Tiny GGUF files for tests, written with the reference package: headers as real ones, weights of zeros."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

WIDTH = 64
TOKENS = [f"t{i}" for i in range(64)]


def target(
    path: Path, *, arch: str = "qwen3", layers: int = 4, width: int = WIDTH, tokens: list[str] | None = None,
    nextn: int = 0, hybrid: bool = False, context: int = 32768, parts: int = 1,
) -> Path:  # fmt: skip
    """A model to be served: `nextn` MTP blocks, `hybrid` with three linear layers to one of attention."""
    w = _begin(path, arch, layers + nextn, width, tokens=tokens or TOKENS, context=context)
    if nextn:
        w.add_nextn_predict_layers(nextn)
    if parts > 1:
        w.add_uint16("split.count", parts)
    if hybrid:
        w.add_ssm_conv_kernel(4)
        w.add_ssm_inner_size(64)
        w.add_ssm_state_size(32)
        w.add_ssm_time_step_rank(2)
        w.add_ssm_group_count(2)
    _tensor(w, "token_embd.weight", width, len(tokens or TOKENS))
    for i in range(layers + nextn):
        linear = hybrid and i < layers and (i + 1) % 4 != 0
        _tensor(w, f"blk.{i}.ssm_conv1d.weight" if linear else f"blk.{i}.attn_k.weight", 32, width)
    return _end(w, path)


def dflash(
    path: Path, *, width: int = WIDTH, block: int = 8, reads: tuple[int, ...] = (1, 2, 3),
    tokens: list[str] | None = None, arch: str = "dflash",
) -> Path:  # fmt: skip
    """A DFlash (or DSpark) drafter."""
    w = _begin(path, arch, 1, width, tokens=tokens or TOKENS)
    w.add_uint32(f"{arch}.block_size", block)
    w.add_array(f"{arch}.target_layers", list(reads))
    _tensor(w, "fc.weight", width, width)
    return _end(w, path)


def eagle3(path: Path, *, width: int = WIDTH, target_hidden: int = WIDTH) -> Path:
    """An EAGLE-3 drafter."""
    w = _begin(path, "eagle3", 1, width)
    w.add_array("eagle3.target_layers", [1, 2, 3])
    w.add_uint32("eagle3.target_hidden_size", target_hidden)
    _tensor(w, "fc.weight", width, width)
    return _end(w, path)


def _begin(
    path: Path, arch: str, blocks: int, width: int, *, tokens: list[str] = TOKENS, context: int = 32768
) -> gguf.GGUFWriter:
    w = gguf.GGUFWriter(str(path), arch)
    w.add_name(path.stem)
    w.add_context_length(context)
    w.add_embedding_length(width)
    w.add_block_count(blocks)
    w.add_head_count(4)
    w.add_head_count_kv(2)
    w.add_key_length(32)
    w.add_value_length(32)
    w.add_tokenizer_model("gpt2")
    w.add_token_list(tokens)
    w.add_token_scores([0.0] * len(tokens))
    w.add_chat_template("{{ messages }}")
    return w


def _tensor(w: gguf.GGUFWriter, name: str, columns: int, rows: int) -> None:
    w.add_tensor(name, np.zeros((rows, columns), np.float32))


def _end(w: gguf.GGUFWriter, path: Path) -> Path:
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path
