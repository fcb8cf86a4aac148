"""Reading a row: typed, bounded, and every complaint names the key.

The format is that of `outrider fit --json`: sizes in GiB, names of fields as engines' logs and model files have
them, what is unknown left out (or null). A row says what is to run; figures that an engine printed about it
(`kv_tokens`, `gpu_blocks`) may stand beside that or in a table `observed`, of which nothing else is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.errors import UsageError

GIB = 1 << 30
_MOST_GIB = 1 << 20
"""A pebibyte: beyond it somebody gave bytes."""
_MOST_DEVICE_GIB = 4096
"""Beyond it somebody gave MiB."""
_MOST_TOKENS = 1 << 34
_MOST_BYTES = 1 << 50


class RowError(UsageError):
    """A row that cannot be meant; `key` says which part of it."""

    code = "bad_row"

    def __init__(self, key: str | None, detail: str) -> None:
        super().__init__(detail if key is None else f"{key}: {detail}", evidence={"key": key})
        self.key = key


@dataclass(frozen=True, slots=True)
class Draft:
    """How tokens are drafted, as the row has it: a method's name in somebody's words, a drafter's name."""

    method: str | None = None
    model: str | None = None
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Stated:
    """Figures that an engine printed: bytes on one device, tokens, blocks. Only what a row gives as an input."""

    kv_tokens: int | None = None
    gpu_blocks: int | None = None
    weights: int | None = None
    activation: int | None = None
    non_torch: int | None = None
    graphs: int | None = None
    budget: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One row. Bytes where a name does not say otherwise; None is unknown."""

    engine: str
    model: str
    id: str | None = None
    engine_version: str | None = None
    gpu: str | None = None
    gpu_mem: int | None = None
    quant: str | None = None
    dtype: str | None = None
    kv_dtype: str | None = None
    context: int | None = None
    parallel: int | None = None
    tp: int | None = None
    draft: Draft | None = None
    weight_bytes: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    launch: Mapping[str, Any] = field(default_factory=dict)
    stated: Stated = Stated()
    ignored: tuple[str, ...] = ()
    """Keys that are understood by nobody here."""


_IGNORED_SILENTLY = frozenset({"observed", "source", "note", "notes", "date", "url"})


class Reader:
    """Takes values out of a table by key, and notes what was taken."""

    def __init__(self, table: Mapping[str, Any], prefix: str = "") -> None:
        self._table = table
        self._prefix = prefix
        self.taken: set[str] = set()

    def name(self, key: str) -> str:
        """The key as an error shows it."""
        return f"{self._prefix}{key}"

    def _value(self, key: str) -> Any:
        self.taken.add(key)
        return self._table.get(key)

    def text(self, key: str) -> str | None:
        """A text, or None; numbers are taken for a version's or an id's text only by `label`."""
        value = self._value(key)
        if value is None:
            return None
        if not isinstance(value, str):
            raise RowError(self.name(key), f"expected a text, found {_shown(value)}")
        if len(value) > 2000:
            raise RowError(self.name(key), "is longer than 2000 characters")
        return value.strip() or None

    def number(self, key: str, *, most: float, least: float = 0.0) -> float | None:
        """A finite number above or at `least`."""
        value = self._value(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise RowError(self.name(key), f"expected a number, found {_shown(value)}")
        if isinstance(value, float) and not math.isfinite(value):
            raise RowError(self.name(key), f"expected a finite number, found {value}")
        if value < least:
            raise RowError(self.name(key), f"must be at least {least:g}, found {value}")
        if value > most:
            raise RowError(self.name(key), f"{value:g} cannot be meant: at most {most:g}")
        return value

    def whole(self, key: str, *, most: int = _MOST_TOKENS, least: int = 1) -> int | None:
        """A whole number."""
        value = self.number(key, most=most, least=least)
        if value is None:
            return None
        if value != int(value):
            raise RowError(self.name(key), f"expected a whole number, found {value}")
        return int(value)

    def gib(self, key: str, *, least: float = 0.0, most: float = _MOST_GIB) -> int | None:
        """A size in GiB, as bytes."""
        value = self.number(key, most=most, least=least)
        return None if value is None else round(value * GIB)

    def table(self, key: str) -> Mapping[str, Any]:
        """A table; empty where it is not given."""
        value = self._value(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise RowError(self.name(key), f"expected a table, found {_shown(value)}")
        return value

    def rest(self) -> Iterator[str]:
        """Keys that nobody took."""
        return (key for key in self._table if key not in self.taken)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def read(table: object) -> Row:
    """A row from what a JSON document has. Raises `RowError`, naming the key."""
    if not isinstance(table, Mapping):
        raise RowError(None, f"expected a table, found {_shown(table)}")
    at = Reader(table)
    engine, model = at.text("engine"), at.text("model")
    facts = at.table("facts")
    if engine is None:
        raise RowError("engine", "is missing")
    if model is None and not facts:
        raise RowError("model", "is missing (or give `facts`)")
    memory = at.gib("gpu_mem_gib", most=_MOST_DEVICE_GIB)
    if memory == 0:
        raise RowError("gpu_mem_gib", "must be more than 0")
    row = Row(
        engine=engine,
        model=model or "(not named)",
        id=at.text("id"),
        engine_version=at.text("engine_version"),
        gpu=at.text("gpu"),
        gpu_mem=memory,
        quant=at.text("quant"),
        dtype=at.text("dtype"),
        kv_dtype=at.text("kv_dtype"),
        context=at.whole("ctx_per_request"),
        parallel=at.whole("parallel", most=1 << 20),
        tp=at.whole("tp", most=4096),
        draft=_drafting(at, table),
        weight_bytes=at.whole("weight_bytes", most=_MOST_BYTES),
        facts=_facts(facts),
        launch=_launch(at.table("launch")),
        stated=_stated(at, at.table("observed")),
    )
    ignored = tuple(sorted(str(key) for key in at.rest() if key not in _IGNORED_SILENTLY))
    return replace(row, ignored=ignored) if ignored else row


def _drafting(at: Reader, table: Mapping[str, Any]) -> Draft | None:
    """A table, or a method's name alone."""
    said = table.get("draft")
    if isinstance(said, str):
        method = at.text("draft")
        return None if method is None else Draft(method=method)
    return None if said is None else _draft(at.table("draft"))


def _draft(table: Mapping[str, Any]) -> Draft:
    at = Reader(table, "draft.")
    counts = ("num_speculative_tokens", "n_max", "num_draft_tokens", "draft_tokens", "num_steps", "tokens")
    given = [at.whole(key, most=1024) for key in counts]
    return Draft(
        method=at.text("method") or at.text("kind") or at.text("type"),
        model=at.text("model"),
        tokens=next((count for count in given if count is not None), None),
    )


def _stated(at: Reader, observed: Mapping[str, Any]) -> Stated:
    seen = Reader(observed, "observed.")
    tokens, blocks = at.whole("kv_tokens"), at.whole("gpu_blocks")
    return Stated(
        kv_tokens=tokens if tokens is not None else seen.whole("kv_tokens"),
        gpu_blocks=blocks if blocks is not None else seen.whole("gpu_blocks"),
        weights=at.gib("weights_gib"),
        activation=at.gib("activation_peak_gib"),
        non_torch=at.gib("non_torch_gib", least=-1024),
        graphs=at.gib("cudagraph_gib"),
        budget=at.gib("budget_gib"),
    )


_FLAGS_WHOLE = {
    "max_model_len": 1, "max_num_seqs": 1, "max_num_batched_tokens": 1, "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1, "decode_context_parallel_size": 1, "n_ctx": 1, "ctx_size": 1, "n_ubatch": 1,
    "n_batch": 1, "n_seq_max": 1, "spec_draft_n_max": 0, "ngl": -1, "n_gpu_layers": -1, "attn_max_b": 0, "mla_attn": 0,
    "kv_cache_memory_bytes": 1, "kv_cache_memory": 1, "context_length": 1, "max_running_requests": 1,
    "chunked_prefill_size": -1, "max_prefill_tokens": 1, "max_total_num_tokens": 1, "page_size": 1, "tp": 1,
    "requested_ctx": 1, "cuda_graph_max_bs_decode": 1, "max_mamba_cache_size": 1, "block_size": 1,
}  # fmt: skip
"""Flags of engines that are whole numbers, and the least each may be."""
_FLAGS_SHARE = ("gpu_memory_utilization", "mem_fraction_static")
_FLAGS_YES = (
    "enforce_eager", "enable_prefix_caching", "enable_chunked_prefill", "kv_unified", "swa_full", "no_kv_offload",
    "disable_radix_cache", "language_model_only", "disable_cuda_graph", "no_mmap", "disable_custom_all_reduce",
)  # fmt: skip


def _launch(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """The launch table with the flags that count checked; what is not known stays as it is."""
    at = Reader(table, "launch.")
    checked = {str(key): value for key, value in table.items() if value is not None}
    for key, least in _FLAGS_WHOLE.items():
        if key in checked:
            checked[key] = at.whole(key, most=_MOST_BYTES, least=least)
    for key in _FLAGS_SHARE:
        if key in checked:
            share = at.number(key, most=1.0, least=0.0)
            if not share:
                raise RowError(at.name(key), "must be more than 0")
            checked[key] = share
    for key in _FLAGS_YES:
        if key in checked:
            checked[key] = _yes(at.name(key), checked[key])
    if "flash_attn" in checked:
        checked["flash_attn"] = _yes("launch.flash_attn", checked["flash_attn"])
    return checked


def _yes(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    if value in (0, 1):
        return value == 1
    if isinstance(value, str) and value.lower() in ("on", "auto", "true", "off", "false"):
        return value.lower() not in ("off", "false")
    raise RowError(name, f"expected true or false, found {_shown(value)}")


_FACTS = {
    "num_hidden_layers": 10_000, "hidden_size": 1 << 20, "intermediate_size": 1 << 24, "num_attention_heads": 1 << 16,
    "head_dim": 1 << 16, "v_head_dim": 1 << 16, "attention_layers": 10_000, "linear_attention_layers": 10_000,
    "linear_num_key_heads": 1 << 16, "linear_num_value_heads": 1 << 16, "linear_key_head_dim": 1 << 16,
    "linear_value_head_dim": 1 << 16, "linear_conv_kernel_dim": 1 << 10, "full_attention_interval": 10_000,
    "sliding_window": 1 << 30, "sliding_layers": 10_000, "sliding_kv_heads": 1 << 16, "sliding_head_dim": 1 << 16,
    "global_kv_heads": 1 << 16, "global_head_dim": 1 << 16, "kv_lora_rank": 1 << 20, "qk_rope_head_dim": 1 << 16,
    "vocab_size": 1 << 28, "max_position": 1 << 32, "mtp_layers": 1000, "num_experts": 1 << 16,
    "experts_per_token": 1 << 16, "parameters": 1 << 50,
}  # fmt: skip
_MAY_BE_ZERO = frozenset({"attention_layers", "linear_attention_layers", "sliding_layers", "mtp_layers"})


def _facts(table: Mapping[str, Any]) -> Mapping[str, Any]:
    at = Reader(table, "facts.")
    checked: dict[str, Any] = {}
    for key, most in _FACTS.items():
        value = at.whole(key, most=most, least=0 if key in _MAY_BE_ZERO else 1)
        if value is not None:
            checked[key] = value
    heads = table.get("num_key_value_heads")
    if isinstance(heads, list):
        if len(heads) > 10_000 or any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in heads):
            raise RowError("facts.num_key_value_heads", "expected whole numbers, one a layer")
        checked["num_key_value_heads"] = tuple(heads)
    else:
        value = at.whole("num_key_value_heads", most=1 << 16)
        if value is not None:
            checked["num_key_value_heads"] = value
    for key in ("torch_dtype", "model"):
        text = at.text(key)
        if text is not None:
            checked[key] = text
    tied = table.get("tie_word_embeddings")
    if tied is not None:
        checked["tie_word_embeddings"] = _yes("facts.tie_word_embeddings", tied)
    if isinstance(table.get("layer_types"), list):
        checked["layer_types"] = tuple(str(kind) for kind in table["layer_types"])
    return checked
