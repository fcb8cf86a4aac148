"""From GGUF metadata and tensor table to `FileFacts`: shapes, vocabulary, drafter facts. Pure.

Whatever a file says is taken as a claim: a value of the wrong type or beyond reason is
treated as absent, so that a strange file gives fewer facts, never an exception.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from orchestrator.file_facts import DrafterFacts, FileFacts
from orchestrator.models import Format, Shape
from orchestrator.plan import Method

Plain: TypeAlias = "int | float | bool | str | tuple[int | float | bool, ...]"
_BEYOND = 1 << 40
"""No count or width in a model is this large."""
_BLOCK = re.compile(r"^blk\.(\d{1,6})\.(.+)$")
_KEYS = {"attn_k", "attn_k_b", "attn_kv_a_mqa"}
"""Tensors that only a layer with a KV cache has."""
MARKOV_HEAD = "markov_w1.weight"
"""The tensor that DSpark adds to DFlash (llama.cpp src/models/dflash.cpp)."""
_DRAFTERS = {"dflash": Method.DFLASH, "dspark": Method.DSPARK, "eagle3": Method.EAGLE3}

_TYPES: Mapping[int, tuple[str, int, int]] = {
    # number: name, elements a block, bytes a block (ggml.h, ggml-common.h)
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One row of the tensor table. `offset` counts from the start of the data section."""

    name: str
    dims: tuple[int, ...]
    kind: int
    offset: int


def tensor_size(tensor: TensorInfo) -> int | None:
    """Bytes, or None for a type younger than this table."""
    known = _TYPES.get(tensor.kind)
    if known is None:
        return None
    _, elements, width = known
    return -(-prod(tensor.dims) // elements) * width


def _bytes_of(tensors: Sequence[TensorInfo], size: int) -> int:
    """Bytes of all tensors; where a type is unknown the file's own size bounds them."""
    sizes = [tensor_size(t) for t in tensors]
    known = sum(s for s in sizes if s is not None)
    return size if None in sizes else min(known, size)


def facts_of(
    *,
    path: str,
    size: int,
    format: Format,  # noqa: A002 - named for the field
    metadata: Mapping[str, Plain],
    tensors: Sequence[TensorInfo],
    tokens: tuple[int, str] | None,
) -> FileFacts:
    """The facts in a header. `tokens` are the vocabulary's length and digest."""
    architecture = metadata.get("general.architecture")
    arch = architecture if isinstance(architecture, str) else None
    name = metadata.get("general.name")
    said = _Said(metadata, arch or "")
    vocab = tokens[0] if tokens is not None else said.count("vocab_size")
    shape = _shape(said, tensors, vocab)
    template = metadata.get("tokenizer.chat_template")
    parts = metadata.get("split.count")
    return FileFacts(
        path=path,
        size=size,
        format=format,
        architecture=arch,
        name=name if isinstance(name, str) else None,
        shape=shape,
        tensor_bytes=_bytes_of(tensors, size),
        vocab=vocab,
        tokens_digest=None if tokens is None else tokens[1],
        nextn_layers=0 if shape is None else shape.mtp_layers,
        drafter=_drafter(said, arch, tensors),
        chat_template=isinstance(template, str) and bool(template.strip()),
        quantisation=_quantisation(tensors),
        parts=parts if isinstance(parts, int) and not isinstance(parts, bool) and 1 <= parts < 1 << 16 else 1,
    )


class _Said:
    """Metadata under the architecture's prefix, as counts or nothing."""

    def __init__(self, metadata: Mapping[str, Plain], arch: str) -> None:
        self._metadata = metadata
        self._arch = arch

    def raw(self, key: str) -> Plain | None:
        return self._metadata.get(f"{self._arch}.{key}")

    def counts(self, key: str) -> tuple[int, ...]:
        """One count or several (per layer); empty when absent or absurd."""
        value = self.raw(key)
        several = value if isinstance(value, tuple) else (value,)
        whole = tuple(v for v in several if isinstance(v, int) and not isinstance(v, bool) and 0 <= v < _BEYOND)
        return whole if len(whole) == len(several) else ()

    def count(self, key: str) -> int | None:
        """The largest positive count under the key, or None."""
        return max(self.counts(key), default=0) or None


def _shape(said: _Said, tensors: Sequence[TensorInfo], vocab: int | None) -> Shape | None:
    blocks = said.count("block_count")
    if blocks is None or blocks > 1 << 16:
        return None
    nextn = min(said.count("nextn_predict_layers") or 0, blocks - 1)
    layers = blocks - nextn
    hidden, heads = said.count("embedding_length"), said.count("attention.head_count")
    kv = said.counts("attention.head_count_kv")
    head_dim = max(said.count("attention.key_length") or 0, said.count("attention.value_length") or 0)
    if not head_dim and hidden and heads:
        head_dim = hidden // heads
    attention, linear = _layer_kinds(said, tensors, layers, kv)
    state = said.count("ssm.state_size") or 0
    inner = said.count("ssm.inner_size") or 0
    value_heads = said.count("ssm.time_step_rank") or (inner // state if state else 0)
    if linear and state and inner and value_heads * state < inner:
        value_heads = -(-inner // state)
    return Shape(
        layers=layers,
        hidden=hidden,
        vocab=vocab or None,
        attention_layers=attention,
        kv_heads=max(kv, default=0) or heads or 0,
        head_dim=head_dim,
        linear_layers=linear,
        linear_key_heads=(said.count("ssm.group_count") or 0) if linear else 0,
        linear_value_heads=value_heads if linear else 0,
        linear_head_dim=state if linear else 0,
        conv_kernel=said.count("ssm.conv_kernel") or 4,
        kv_lora_rank=said.count("attention.kv_lora_rank"),
        rope_head_dim=said.count("rope.dimension_count"),
        max_context=said.count("context_length"),
        mtp_layers=nextn,
    )


def _layer_kinds(said: _Said, tensors: Sequence[TensorInfo], layers: int, kv: tuple[int, ...]) -> tuple[int, int]:
    """(layers with a KV cache, layers with a recurrent state): told by their tensors, else by
    head counts or the interval. A layer can have both."""
    parts: dict[int, set[str]] = {}
    for tensor in tensors:
        match = _BLOCK.match(tensor.name)
        if match and int(match[1]) < layers:
            parts.setdefault(int(match[1]), set()).add(match[2].partition(".")[0])
    recurrent = {i for i, names in parts.items() if any(n.startswith("ssm_") for n in names)}
    if recurrent:
        attending = {i for i, names in parts.items() if names & _KEYS or (i not in recurrent and "attn_qkv" in names)}
        return len(attending), len(recurrent)
    if not parts:
        if len(kv) > 1:
            linear = sum(1 for k in kv[:layers] if k == 0)
            return layers - linear, linear
        interval = said.count("full_attention_interval")
        if interval:
            return layers // interval, layers - layers // interval
    return layers, 0


def _drafter(said: _Said, arch: str | None, tensors: Sequence[TensorInfo]) -> DrafterFacts | None:
    """llama.cpp has one architecture for DFlash and DSpark; the Markov head tells them apart."""
    method = _DRAFTERS.get(arch or "")
    if method is Method.DFLASH and any(t.name == MARKOV_HEAD for t in tensors):
        method = Method.DSPARK
    if method is None:
        return None
    return DrafterFacts(
        method=method,
        block_size=said.count("block_size"),
        target_layers=said.counts("target_layers"),
        target_hidden=said.count("target_hidden_size"),
    )


def _quantisation(tensors: Sequence[TensorInfo]) -> str | None:
    """The type that most weight bytes have: `Q4_K`, `F16`; None without a known one."""
    weight: Counter[str] = Counter()
    for tensor in tensors:
        size = tensor_size(tensor)
        if size is not None and len(tensor.dims) > 1:
            weight[_TYPES[tensor.kind][0]] += size
    return max(sorted(weight), key=lambda n: weight[n]) if weight else None
