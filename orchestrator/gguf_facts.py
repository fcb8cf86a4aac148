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

from orchestrator.file_facts import DrafterFacts, FileFacts, Portions
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
_ENDS = ("eos", "eot", "eom", "padding")
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
        drafter=_drafter(said, arch, tensors, shape),
        chat_template=isinstance(template, str) and bool(template.strip()),
        quantisation=_quantisation(tensors),
        portions=_portions(tensors, shape),
        mtp_declared=0 if shape is None else said.count("nextn_predict_layers") or 0,
        end_tokens=tuple(sorted({n for key in _ENDS if (n := said.token(key)) is not None})),
        parts=parts if isinstance(parts, int) and not isinstance(parts, bool) and 1 <= parts < 1 << 16 else 1,
    )


class _Said:
    """Metadata under the architecture's prefix, as counts or nothing."""

    def __init__(self, metadata: Mapping[str, Plain], arch: str) -> None:
        self._metadata = metadata
        self.arch = arch

    def raw(self, key: str) -> Plain | None:
        return self._metadata.get(f"{self.arch}.{key}")

    def token(self, key: str) -> int | None:
        """The number of a special token."""
        value = self._metadata.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(value, bool) or not isinstance(value, int):
            return None
        return value if 0 <= value < 1 << 32 else None

    @property
    def recurrent(self) -> bool:
        """Whether the metadata has widths of a recurrent state."""
        return any(self.count(key) for key in ("ssm.state_size", "kda.head_dim", "shortconv.l_cache"))

    def flags(self, key: str) -> tuple[bool, ...]:
        """A list of yes and no (per layer); empty when absent or absurd."""
        value = self.raw(key)
        return tuple(bool(v) for v in value) if isinstance(value, tuple) else ()

    def own_caches(self, layers: int) -> int:
        """So many layers, from the first, have a cache of their own; the rest use one of theirs."""
        own = layers - (self.count("attention.shared_kv_layers") or 0)
        return min(own if own > 0 else layers, _FROM_START.get(self.arch, layers))

    def counts(self, key: str) -> tuple[int, ...]:
        """One count or several (per layer); empty when absent or absurd."""
        value = self.raw(key)
        several = value if isinstance(value, tuple) else (value,)
        whole = tuple(v for v in several if isinstance(v, int) and not isinstance(v, bool) and 0 <= v < _BEYOND)
        return whole if len(whole) == len(several) else ()

    def count(self, key: str) -> int | None:
        """The largest positive count under the key, or None."""
        return max(self.counts(key), default=0) or None


_SWA_EVERY: Mapping[str, tuple[int, bool]] = {
    # of so many layers one sees everything: the last, or with True the first (llama.cpp src/models: load_swa_pattern)
    "gemma2": (2, False), "gemma3": (6, False), "gemma3n": (5, False), "gpt-oss": (2, False), "cohere2": (4, False),
    "cohere2moe": (4, True), "exaone4": (4, False), "exaone-moe": (4, False), "olmo2": (4, False),
    "afmoe": (4, False), "llama4": (4, False), "smallthinker": (4, True), "laguna": (4, True), "plamo3": (8, False),
    "mellum": (4, False), "muse-glimmer": (4, False),
}  # fmt: skip
_FROM_START = {"gemma3n": 20}
"""Layers with a cache of their own, where the metadata does not say it (llama.cpp src/models)."""


def _shape(said: _Said, tensors: Sequence[TensorInfo], vocab: int | None) -> Shape | None:
    blocks = said.count("block_count")
    if blocks is None or blocks > 1 << 16:
        return None
    nextn = min(said.count("nextn_predict_layers") or 0, blocks - 1)
    layers = blocks - nextn
    hidden, heads = said.count("embedding_length"), said.count("attention.head_count")
    kv = said.counts("attention.head_count_kv")
    width = said.count("attention.key_length") or (hidden // heads if hidden and heads else 0)
    value = said.count("attention.value_length") or width
    # a file with the latent rank alone is unfolded: llama.cpp keeps keys and values of all heads then
    latent = said.count("attention.kv_lora_rank") if said.count("attention.key_length_mla") else None
    if latent is not None:
        width, value = (
            said.count("attention.key_length_mla") or width,
            said.count("attention.value_length_mla") or value,
        )
    attention, linear = _layer_kinds(said, tensors, layers, kv)
    windowed = _windowed(said, layers, kv)
    attention = min(attention, said.own_caches(layers))
    split = _heads_and_windows(said, kv[:layers], windowed, heads, (width, value))
    recurrent = _recurrent(said, heads) if linear else _Recurrent(0, 0, 0, None, 4)
    return Shape(
        layers=layers,
        hidden=hidden,
        intermediate=said.count("feed_forward_length"),
        vocab=vocab or None,
        heads=heads,
        attention_layers=attention,
        kv_heads=split.heads,
        head_dim=width,
        value_dim=value if value != width else None,
        kv_heads_by_layer=split.by_layer,
        sliding_layers=min(sum(windowed), attention),
        sliding_window=said.count("attention.sliding_window") if any(windowed) else None,
        sliding_kv_heads=split.sliding_heads,
        sliding_head_dim=split.sliding_width,
        linear_layers=linear,
        linear_key_heads=recurrent.key_heads,
        linear_value_heads=recurrent.value_heads,
        linear_head_dim=recurrent.width,
        linear_value_dim=recurrent.value_width,
        conv_kernel=recurrent.kernel,
        kv_lora_rank=latent,
        rope_head_dim=None if latent is None else said.count("rope.dimension_count"),
        max_context=said.count("context_length"),
        mtp_layers=_head_layers(tensors, layers, nextn),
        experts=said.count("expert_count"),
        experts_used=said.count("expert_used_count"),
        tied_embeddings=_tied(tensors),
    )


def _head_layers(tensors: Sequence[TensorInfo], layers: int, declared: int) -> int:
    """Blocks of an MTP head that have weights; what the metadata declares where there is no tensor at all."""
    if not tensors or not declared:
        return declared
    found = {int(m[1]) for t in tensors if (m := _BLOCK.match(t.name)) and int(m[1]) >= layers}
    return len(found)


def _tied(tensors: Sequence[TensorInfo]) -> bool | None:
    """Whether the output head is the embedding again. None for files without an embedding, as drafters are."""
    names = {t.name for t in tensors}
    return None if "token_embd.weight" not in names else "output.weight" not in names


def _windowed(said: _Said, layers: int, kv: Sequence[int]) -> list[bool]:
    """For each layer whether it has a sliding window."""
    if not said.count("attention.sliding_window"):
        return [False] * layers
    pattern = said.flags("attention.sliding_window_pattern")
    if len(pattern) >= layers:
        found = list(pattern[:layers])
    else:
        every, first = _SWA_EVERY.get(said.arch, (1 << 30, False))
        every = said.count("attention.sliding_window_pattern") or every
        if every == 1 << 30:  # llama.cpp knows no pattern for it: every layer sees everything
            return [False] * layers
        found = [bool(i % every) if first else i % every < every - 1 for i in range(layers)]
    own = said.own_caches(layers)
    return [windowed and i < own and (i >= len(kv) or kv[i] > 0 or len(kv) == 1) for i, windowed in enumerate(found)]


@dataclass(frozen=True, slots=True)
class _Split:
    """KV heads of layers that see everything, and of those with a window where they differ."""

    heads: int
    by_layer: tuple[int, ...] = ()
    sliding_heads: int | None = None
    sliding_width: int | None = None


def _heads_and_windows(
    said: _Said, kv: Sequence[int], windowed: Sequence[bool], heads: int | None, widths: tuple[int, int]
) -> _Split:
    narrow = said.count("attention.key_length_swa") if any(windowed) else None
    narrow = narrow if narrow != widths[0] else None
    if len(kv) <= 1 or len(kv) != len(windowed):
        return _Split(max(kv, default=0) or heads or 0, sliding_width=narrow)
    full = {k for k, window in zip(kv, windowed, strict=True) if k and not window}
    sliding = {k for k, window in zip(kv, windowed, strict=True) if k and window}
    if len(full) > 1 or len(sliding) > 1:
        return _Split(max(kv), tuple(kv), sliding_width=narrow)
    one, other = max(full, default=0), max(sliding, default=0)
    return _Split(one or other, sliding_heads=other if other and one and other != one else None, sliding_width=narrow)


@dataclass(frozen=True, slots=True)
class _Recurrent:
    """Widths of a recurrent layer, as in `Shape`."""

    key_heads: int
    value_heads: int
    width: int
    value_width: int | None
    kernel: int


def _recurrent(said: _Said, heads: int | None) -> _Recurrent:
    """KDA has a key of its own (llama.cpp llama-hparams.cpp, `n_embd_r` and `n_embd_s`); else Mamba's keys hold."""
    kernel = said.count("ssm.conv_kernel") or 4
    kda = said.count("kda.head_dim")
    if kda is not None and heads:
        return _Recurrent(heads, heads, kda, None, kernel)
    short = said.count("shortconv.l_cache")
    if short is not None:
        return _Recurrent(0, 1, 0, said.count("embedding_length"), short)
    state, inner = said.count("ssm.state_size") or 0, said.count("ssm.inner_size") or 0
    values = said.count("ssm.time_step_rank") or 0
    if not values or inner % values:
        values = inner // state if state and inner % state == 0 else 1
    value = inner // values
    return _Recurrent(
        said.count("ssm.group_count") or 0, values, state, value if value and value != state else None, kernel
    )


def _layer_kinds(said: _Said, tensors: Sequence[TensorInfo], layers: int, kv: tuple[int, ...]) -> tuple[int, int]:
    """(layers with a KV cache, layers with a recurrent state): told by their tensors, else by
    head counts or the interval. A layer can have both, or neither."""
    parts: dict[int, set[str]] = {}
    for tensor in tensors:
        match = _BLOCK.match(tensor.name)
        if match and int(match[1]) < layers:
            parts.setdefault(int(match[1]), set()).add(match[2].partition(".")[0])
    recurrent = {i for i, names in parts.items() if any(n.startswith(("ssm_", "shortconv")) for n in names)}
    if recurrent:
        attending = {i for i, names in parts.items() if names & _KEYS or (i not in recurrent and "attn_qkv" in names)}
        return len(attending), len(recurrent)
    empty = sum(1 for k in kv[:layers] if k == 0) if len(kv) > 1 else 0
    if parts or not said.recurrent:
        return layers - empty, 0
    if len(kv) > 1:
        return layers - empty, empty
    interval = said.count("full_attention_interval")
    return (layers // interval, layers - layers // interval) if interval else (layers, 0)


def _drafter(said: _Said, arch: str | None, tensors: Sequence[TensorInfo], shape: Shape | None) -> DrafterFacts | None:
    """llama.cpp has one architecture for DFlash, DFlash 2 and DSpark; a Markov head makes a DSpark of it, a
    selector a DFlash 2 (src/models/dflash.cpp). A file with an MTP head and no first layer is a sidecar."""
    method = _DRAFTERS.get(arch or "")
    markov = next((t.dims[0] for t in tensors if t.name == MARKOV_HEAD and t.dims), None)
    if method is Method.DFLASH and markov is not None:
        method = Method.DSPARK
    if method is None:
        return _sidecar(tensors, shape)
    map_back = next((t.dims[0] for t in tensors if t.name == "d2t" and t.dims), None)
    return DrafterFacts(
        method=method,
        block_size=said.count("block_size"),
        target_layers=said.counts("target_layers"),
        target_hidden=said.count("target_hidden_size"),
        mask_token=said.token("mask"),
        version=2 if any(t.name == "selector_hidden.weight" for t in tensors) else 1,
        markov_rank=markov,
        draft_vocab=map_back,
    )


def _sidecar(tensors: Sequence[TensorInfo], shape: Shape | None) -> DrafterFacts | None:
    """`mtp-*.gguf`: the head, embedding and output of a model without its layers (llama.cpp `mtp_only`)."""
    blocks = {int(m[1]) for t in tensors if (m := _BLOCK.match(t.name))}
    if shape is None or not shape.mtp_layers or not blocks or min(blocks) < shape.layers:
        return None
    return DrafterFacts(method=Method.MTP, target_hidden=shape.hidden, target_depth=shape.layers)


def _portions(tensors: Sequence[TensorInfo], shape: Shape | None) -> Portions | None:
    """Bytes by purpose; None where a tensor's type is younger than this table. GGUF keeps vision in other files."""
    sums: Counter[str] = Counter()
    for tensor in tensors:
        size = tensor_size(tensor)
        if size is None:
            return None
        match = _BLOCK.match(tensor.name)
        if match is not None and shape is not None and int(match[1]) >= shape.layers:
            sums["mtp"] += size
        elif tensor.name.startswith("token_embd."):
            sums["embedding"] += size
        else:
            sums["head" if tensor.name.startswith("output.") else "rest"] += size
    return Portions(sums["embedding"], sums["head"], 0, sums["mtp"], sums["rest"])


def _quantisation(tensors: Sequence[TensorInfo]) -> str | None:
    """The type that most weight bytes have: `Q4_K`, `F16`; None without a known one."""
    weight: Counter[str] = Counter()
    for tensor in tensors:
        size = tensor_size(tensor)
        if size is not None and len(tensor.dims) > 1:
            weight[_TYPES[tensor.kind][0]] += size
    return max(sorted(weight), key=lambda n: weight[n]) if weight else None
