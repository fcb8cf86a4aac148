"""SGLang: pools, states and its own reserve against what public logs print."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.kinds import KvType
from orchestrator.memory_fit import Demand, forecast, sglang_pool
from orchestrator.memory_fit.sglang_pool import available, reserve, state_of_request, static_share
from orchestrator.models import Runtime
from orchestrator.plan import Method
from tests.memory_fit import shapes as s
from tests.memory_fit.shapes import GIB, MIB, demand, observed

FP8, BF16 = KvType.FP8_E4M3, KvType.BF16
POOLS: dict[str, Demand] = {
    "sgl-01": demand(s.QWEN3_235B, 40960, kv=BF16, tensor_parallel=4),
    "sgl-02": demand(s.QWEN_27B, 262144, kv=FP8, tensor_parallel=2, method=Method.DFLASH, draft_tokens=7,
                     drafter_shape=s.DFLASH2),
    "sgl-03": demand(s.QWEN3_4B, 32768, kv=BF16),
    "sgl-04": demand(s.QWEN_27B, 2048, 32, kv=BF16),
    "sgl-05": demand(s.QWEN_27B, 262144, kv=FP8, tensor_parallel=2, method=Method.MTP, draft_tokens=7),
}  # fmt: skip


@pytest.mark.parametrize("row", POOLS)
def test_keys_and_values_of_the_printed_tokens(row: str) -> None:
    """Target and drafter have the same number of tokens; an MTP head is a sixteenth of sixteen layers."""
    seen = observed(row)
    pool = sglang_pool(POOLS[row])
    assert pool is not None
    kv = seen["kv_tokens"] * pool.token_bytes / GIB
    assert kv == pytest.approx(seen["k_gib"] + seen["v_gib"], rel=0.0025)
    if "draft_k_gib" in seen:
        drafts = seen["kv_tokens"] * pool.draft_token_bytes / GIB
        assert drafts == pytest.approx(seen["draft_k_gib"] + seen["draft_v_gib"], abs=0.011)  # 0.125 shown as 0.13


def test_the_whole_budget_of_a_hybrid() -> None:
    """59.87 GiB left after a load of 51.86, a share of 0.8, 32 requests without kept prefixes: 33 states of 147 MiB."""
    seen, made = observed("sgl-04"), POOLS["sgl-04"]
    free = available(
        int((seen["avail_after_weights_gib"] + seen["weights_gib"]) * GIB), int(seen["avail_after_weights_gib"] * GIB),
        0.8,
    )  # fmt: skip
    pool = sglang_pool(made, free)
    assert pool is not None
    assert pool.state_slots == 32
    assert pool.state_bytes == 33 * state_of_request(made, s.QWEN_27B)
    assert state_of_request(made, s.QWEN_27B) / MIB == pytest.approx(146.8, abs=0.1)
    assert pool.tokens == pytest.approx(seen["kv_tokens"], rel=0.005)


def test_states_take_their_share_where_prefixes_are_kept() -> None:
    """0.9 / 1.9 of what there is; drafting keeps a copy of the state for each of its tokens besides."""
    made = demand(s.QWEN_27B, 32768, 4, kv=BF16, prefix_caching=True)
    pool = sglang_pool(made, 19 * GIB)
    assert pool is not None
    assert pool.state_bytes == pytest.approx(9 * GIB, rel=0.02)
    assert pool.tokens * pool.token_bytes == pytest.approx(10 * GIB, rel=0.02)
    drafting = replace(made, method=Method.MTP, draft_tokens=3, sequences=64)
    with_drafts = sglang_pool(drafting, 19 * GIB)
    assert with_drafts is not None
    assert with_drafts.state_slots < pool.state_slots / 2
    assert with_drafts.tokens < pool.tokens


@pytest.mark.parametrize(
    ("gib", "chunk", "share"),
    [(24, 4096, 0.704), (16, 2048, 0.752), (80, 8192, 0.83)],
)
def test_the_default_share_by_card(gib: int, chunk: int, share: float) -> None:
    """0.5.23: a constant, 1.5 MiB a token of the chunk, 128 a rank, 2 a captured batch, 8 a captured prefill size."""
    graphs = {2048: 42, 4096: 50, 8192: 58}[chunk]
    batch = {2048: 8, 4096: 48, 8192: 256}[chunk]
    kept = 512 + 1.5 * chunk + 128 + 2 * batch + 8 * graphs
    assert reserve(gib * GIB) == int(max(kept, 10240 if gib > 60 else 0) * MIB)
    assert static_share(gib * GIB) == share


def test_a_forecast_holds_what_is_asked_for() -> None:
    made = demand(s.QWEN_27B, 32768, 4, kv=BF16, weights=16 * GIB, device_total=48 * GIB, batch=4096)
    found = forecast(Runtime.SGLANG, made)
    assert found.kv == 4 * 32768 * 65536
    assert found.state == 5 * state_of_request(made, s.QWEN_27B)
    assert found.total > found.weights + found.kv + found.state
    assert forecast(Runtime.SGLANG, Demand(GIB, None, 1, 1)).weights == GIB
