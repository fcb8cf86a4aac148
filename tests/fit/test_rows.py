"""Reading rows: whatever comes in, a row or an error that names the key comes out."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.fit import RowError, fit, read
from orchestrator.fit.rows import GIB

GOOD: dict[str, Any] = {
    "id": "a", "engine": "vllm", "engine_version": "0.27.1", "gpu": "2x RTX 3090", "gpu_mem_gib": 24,
    "model": "Qwen/Qwen3.8-27B-FP8", "kv_dtype": "fp8", "ctx_per_request": 65536, "parallel": 2, "tp": 2,
    "draft": {"method": "mtp", "num_speculative_tokens": 3}, "launch": {"gpu_memory_utilization": 0.9},
}  # fmt: skip


def test_a_good_row() -> None:
    row = read(GOOD)
    assert (row.engine, row.gpu_mem, row.context, row.tp) == ("vllm", 24 * GIB, 65536, 2)
    assert row.draft is not None
    assert row.draft.tokens == 3
    assert row.ignored == ()


LAYERS = {"num_hidden_layers": 4, "attention_layers": 3, "linear_attention_layers": 2}
HEADS = {"num_key_value_heads": 4, "head_dim": 64}
BAD = [
    ({"engine": None}, "engine"),
    ({"engine": 7}, "engine"),
    ({"model": None}, "model"),
    ({"gpu_mem_gib": "24"}, "gpu_mem_gib"),
    ({"gpu_mem_gib": -24}, "gpu_mem_gib"),
    ({"gpu_mem_gib": 0}, "gpu_mem_gib"),
    ({"gpu_mem_gib": 25769803776}, "gpu_mem_gib"),
    ({"gpu_mem_gib": 24576}, "gpu_mem_gib"),
    ({"gpu_mem_gib": True}, "gpu_mem_gib"),
    ({"gpu_mem_gib": math.nan}, "gpu_mem_gib"),
    ({"ctx_per_request": "65536"}, "ctx_per_request"),
    ({"ctx_per_request": 0}, "ctx_per_request"),
    ({"ctx_per_request": 1.5}, "ctx_per_request"),
    ({"ctx_per_request": 10**30}, "ctx_per_request"),
    ({"parallel": -1}, "parallel"),
    ({"tp": [2]}, "tp"),
    ({"draft": 7}, "draft"),
    ({"draft": {"n_max": "two"}}, "draft.n_max"),
    ({"launch": []}, "launch"),
    ({"launch": {"gpu_memory_utilization": 90}}, "launch.gpu_memory_utilization"),
    ({"launch": {"gpu_memory_utilization": 0}}, "launch.gpu_memory_utilization"),
    ({"launch": {"max_num_batched_tokens": "8192"}}, "launch.max_num_batched_tokens"),
    ({"launch": {"enforce_eager": "perhaps"}}, "launch.enforce_eager"),
    ({"launch": {"ngl": -2}}, "launch.ngl"),
    ({"facts": {"num_hidden_layers": -3}}, "facts.num_hidden_layers"),
    ({"facts": {**HEADS, "num_hidden_layers": 4, "sliding_layers": 5, "sliding_window": 9}}, "facts.sliding_layers"),
    ({"facts": {**HEADS, **LAYERS}}, "facts.attention_layers"),
    ({"facts": {"num_hidden_layers": 4, "num_key_value_heads": [8, -1]}}, "facts.num_key_value_heads"),
    ({"facts": {"sliding_layers": 2}}, "facts.sliding_window"),
    ({"weight_bytes": -1}, "weight_bytes"),
    ({"weights_gib": "17"}, "weights_gib"),
    ({"kv_tokens": -5}, "kv_tokens"),
    ({"observed": {"kv_tokens": "many"}}, "observed.kv_tokens"),
    ({"observed": 7}, "observed"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "key"), BAD, ids=lambda value: value if isinstance(value, str) else "")
def test_a_bad_row_names_its_key(change: dict[str, Any], key: str) -> None:
    with pytest.raises(RowError) as caught:
        fit(read({**GOOD, **change}))
    assert caught.value.key == key
    assert str(caught.value).startswith(f"{key}: ")


@pytest.mark.parametrize("table", [None, 7, "vllm", [GOOD]])
def test_what_is_no_table_is_an_error(table: object) -> None:
    with pytest.raises(RowError, match="expected a table"):
        read(table)


def test_unknown_keys_are_named_and_null_is_absent() -> None:
    row = read({**GOOD, "gpu_men_gib": 24, "draft": {"n_max": None, "kind": "mtp"}, "quant": None, "source": "x"})
    assert row.ignored == ("gpu_men_gib",)
    assert row.draft is not None
    assert row.draft.tokens is None


def test_a_draft_may_be_a_word() -> None:
    row = read({**GOOD, "draft": "eagle3"})
    assert row.draft is not None
    assert (row.draft.method, row.draft.tokens) == ("eagle3", None)
    assert fit(row).to_dict()["verdict"] in ("fits", "too_big", "unknown")
    assert fit(read({**GOOD, "draft": "none"})).to_dict()["verdict"] == "fits"
    asked = read({**GOOD, "draft": {"type": "mtp", "tokens": 4}}).draft
    assert asked is not None
    assert (asked.method, asked.tokens) == ("mtp", 4)


def test_an_engine_without_formulas_is_unknown() -> None:
    answer = fit(read({"engine": "tensorrt-llm", "model": "Qwen3-8B"}))
    assert answer.verdict == "unknown"
    assert answer.reasons[0].code == "engine_unknown"


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**12), 10**12), st.floats(), st.text(max_size=12),
    st.sampled_from(["vllm", "sglang", "llama.cpp", "RTX 3090", "Qwen3-8B", "Q4_K_M", "mtp", "fp8"]),
)  # fmt: skip
KEYS = st.sampled_from(
    [
        *GOOD, "quant", "dtype", "weight_bytes", "weights_gib", "kv_tokens", "gpu_blocks", "facts", "observed",
        "num_hidden_layers", "num_key_value_heads", "head_dim", "sliding_layers", "max_model_len", "n_ctx", "np",
        "ngl", "gpu_memory_utilization", "method", "n_max", "limit_mm_per_prompt", "kv_cache_dtype",
    ]
)  # fmt: skip
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=12
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=9))
def test_any_row_is_read_or_refused_by_name(change: dict[str, Any]) -> None:
    document: dict[str, Any] = {}
    refused: str | None = None
    try:
        document = fit(read({**GOOD, **change})).to_dict()
    except RowError as error:
        refused = error.key
    if not document:
        assert refused is not None
        assert refused.split(".")[0] in {**GOOD, **change}
        return
    assert document["verdict"] in ("fits", "too_big", "unknown")
    assert document["reasons"]
    json.dumps(document, allow_nan=False)
