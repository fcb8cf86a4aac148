"""vLLM: token counts, concurrency, needs and refusals against what public logs print."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.kinds import KvType
from orchestrator.memory_fit import Demand, forecast, pool_bytes, pool_tokens, split, vllm_pool
from orchestrator.models import Runtime
from orchestrator.plan import Method
from tests.memory_fit import shapes as s
from tests.memory_fit.shapes import GIB, demand, observed

FP8, BF16 = KvType.FP8, KvType.BF16


def two(context: int, drafts: int = 3, **more: object) -> Demand:
    """27B over two cards with an 8-bit cache and its MTP head (none: 0 drafts)."""
    method = Method.MTP if drafts else Method.NONE
    fields: dict[str, object] = {"kv": FP8, "tensor_parallel": 2, "prefix_caching": True, **more}
    return demand(s.QWEN_27B, context, 1, method=method, draft_tokens=drafts, **fields)


# the whole configuration is in the log, or one is told by the block count: every printed number is exact
FROM_GIB = {
    "vllm-c3090-01": demand(s.QWEN_35B_A3B, 131072, kv=FP8, prefix_caching=True, version="0.24.0"),
    "vllm-c3090-02": demand(s.QWEN_35B_A3B, 131072, kv=FP8, prefix_caching=True, version="0.24.0"),
    "vllm-c3090-07": two(262144, 0),
    "vllm-c3090-08": two(262144),
    "vllm-c3090-16": two(262144, prefix_caching=False),
}  # fmt: skip
V0 = {
    "vllm-iss-05": demand(s.LLAMA_8B, 20000, kv=BF16, version="V0 engine (Dec 2024)"),
    "vllm-iss-06": demand(s.LLAMA_8B, 29000, kv=BF16, version="V0 engine (Dec 2024)"),
    "vllm-iss-07": demand(s.LLAMA_8B, 8192, kv=BF16, version="V0 engine (Jan 2025)"),
    "vllm-iss-09": demand(s.LLAMA_8B, 131072, kv=BF16, version="V0"),
}  # fmt: skip


@pytest.mark.parametrize("row", FROM_GIB)
def test_printed_tokens_and_concurrency_to_the_last_digit(row: str) -> None:
    seen = observed(row)
    held = pool_tokens(FROM_GIB[row], int(seen["kv_gib"] * GIB))
    assert held is not None
    assert held.tokens == seen["kv_tokens"]
    assert held.concurrency == pytest.approx(seen["max_concurrency"], abs=0.01)
    assert held.enough


@pytest.mark.parametrize("row", V0)
def test_blocks_of_the_old_engine(row: str) -> None:
    """Of GiB with two digits: a block or two more or less."""
    seen = observed(row)
    held = pool_tokens(V0[row], int(seen["kv_gib"] * GIB))
    assert held is not None
    assert held.blocks == pytest.approx(seen["gpu_blocks"], abs=2)
    assert held.concurrency == pytest.approx(seen["max_concurrency"], abs=0.01)
    assert held.tokens == held.blocks * 16
    assert held.enough is not seen["oom"]


BY_TOKENS = {
    # batches in flight, drafters, windows, pages: a wrong assumption misses the lattice of possible counts
    "vllm-c3090-04": two(262144),
    "vllm-c3090-05": two(262144),
    "vllm-c3090-12": two(262144, version="0.27.1"),
    "vllm-c3090-13": two(262144, 4, version="0.27.1"),
    "vllm-c3090-14": two(204800, kv=BF16, version="0.27.1", batch=8192),
    "vllm-c3090-15": two(262144, version="0.25.1"),
    "vllm-c3090-17": demand(s.GEMMA_4_31B, 131072, kv=BF16, tensor_parallel=2, batch=4096, version="0.22.0"),
    "vllm-c3090-20": demand(s.GEMMA_4_26B, 262144, kv=BF16, tensor_parallel=2, batch=4096, version="0.22.0"),
    "vllm-c3090-21": demand(s.GEMMA_4_31B, 262144, kv=BF16, tensor_parallel=4, batch=4096, version="0.22.0"),
    "vllm-iss-28": demand(s.GEMMA_4_31B, 262144, kv=BF16, batch=4096, version="0.22.0"),
}  # fmt: skip
BY_TOKENS["vllm-c3090-14"] = replace(
    BY_TOKENS["vllm-c3090-14"], method=Method.DFLASH, draft_tokens=7, drafter_shape=s.DFLASH2
)


@pytest.mark.parametrize("row", BY_TOKENS)
def test_printed_tokens_are_on_the_lattice_of_pools(row: str) -> None:
    made, seen = BY_TOKENS[row], observed(row)
    pool = pool_bytes(made, seen["kv_tokens"])
    assert pool is not None
    held = pool_tokens(made, pool)
    assert held is not None
    assert held.tokens == seen["kv_tokens"]
    if "max_concurrency" in seen:
        assert held.concurrency == pytest.approx(seen["max_concurrency"], abs=0.01)


def test_without_a_drafter_the_same_pool_holds_more() -> None:
    """Both counts of one row, before and after."""
    pool = pool_bytes(two(262144, 0), observed("vllm-c3090-13")["kv_tokens_without_drafter"])
    assert pool is not None
    held = pool_tokens(two(262144, 0), pool)
    assert held is not None
    assert held.tokens == observed("vllm-c3090-13")["kv_tokens_without_drafter"]


@pytest.mark.parametrize(
    ("row", "made", "key"),
    [
        ("vllm-c3090-14", replace(BY_TOKENS["vllm-c3090-14"], context=262144), "needed_gib_at_262144"),
        ("vllm-c3090-24", replace(two(180000), tensor_parallel=1), "needed_gib"),
        ("vllm-iss-24", demand(s.QWEN3_8B, 40960, kv=BF16, version="0.27.1"), "needed_gib"),
        ("vllm-iss-04", demand(s.QWEN3_30B, 262144, kv=BF16, version="0.15.2rc1"), "needed_gib"),
    ],
)
def test_what_a_refusal_says_it_needs(row: str, made: Demand, key: str) -> None:
    seen = observed(row)
    available: float = seen.get("available_gib") or seen["available_gib_approx"]
    held = pool_tokens(made, int(available * GIB))
    assert held is not None
    assert held.needed / GIB == pytest.approx(seen[key], abs=0.0055)
    assert not held.enough
    if "max_len_estimate" in seen:
        assert held.longest == pytest.approx(seen["max_len_estimate"], abs=16)


def test_windows_and_pages_of_gemma() -> None:
    """384019 printed of 8.16 GiB: 4096 blocks of the global layers and five groups of 321 for windows."""
    made = demand(s.GEMMA_4_12B, 131072, kv=BF16, tensor_parallel=2, batch=4096, version="0.22.0")
    pool = vllm_pool(made)
    assert pool is not None
    assert pool.token_blocks == 4096 + 5 * 321
    held = pool_tokens(made, int(observed("vllm-c3090-11")["kv_gib"] * GIB))
    assert held is not None
    assert held.tokens == pytest.approx(observed("vllm-c3090-11")["kv_tokens"], rel=0.001)


def test_the_minimum_over_ranks() -> None:
    """The line is one rank's, the pool the least of four."""
    made = demand(s.QWEN3_235B, 40960, kv=BF16, tensor_parallel=4)
    pool = pool_bytes(made, observed("vllm-iss-01")["kv_tokens"])
    assert pool is not None
    assert pool / GIB == pytest.approx(observed("vllm-iss-01")["kv_gib"], rel=0.012)


def test_printed_tokens_of_versions_before_0_20() -> None:
    """blocks // groups x block: not in proportion to the concurrency, for windows take less."""
    made = demand(s.GEMMA_4_12B, 4096, kv=BF16, batch=2048, version="0.19.1")
    held, later = pool_tokens(made, 4 * GIB), pool_tokens(replace(made, version="0.20.0"), 4 * GIB)
    assert held is not None
    assert later is not None
    assert held.concurrency == later.concurrency
    assert held.tokens == held.blocks // 6 * 16
    assert later.tokens == int(held.concurrency * 4096)


def test_tokens_and_concurrency_of_an_old_version_are_not_proportional() -> None:
    """483200 tokens and 6.77x at 262144: 1211 blocks in four groups of 1600 tokens."""
    made, seen = two(262144, tensor_parallel=4, version="0.19.0"), observed("vllm-c3090-26")
    pool = pool_bytes(made, seen["kv_tokens"])
    assert pool is not None
    block = pool // 1208
    held = pool_tokens(made, 1211 * block)
    assert held is not None
    assert held.tokens == seen["kv_tokens"]
    assert held.concurrency == pytest.approx(seen["max_concurrency"], abs=0.005)


def test_a_drafter_with_a_type_of_its_own_wastes_pages() -> None:
    """27B in int8 and a DFlash2 drafter in bf16: 385 blocks of 16 tokens, each padded to a page of 1.7 MiB."""
    made = two(65536, kv=KvType.INT8, batch=2048, prefix_caching=False)
    made = replace(made, method=Method.DFLASH, draft_tokens=7, drafter_shape=s.DFLASH2)
    apart = vllm_pool(replace(made, draft_kv=BF16))
    assert apart is not None
    assert apart.token_blocks == 4 * -(-65536 // apart.block_tokens) + 385
    assert apart.block_bytes * 385 > 3 * GIB


@pytest.mark.parametrize("row", ["vllm-iss-05", "vllm-iss-06", "vllm-iss-08", "vllm-iss-09"])
def test_what_is_left_for_the_cache(row: str) -> None:
    """Within 10 %, of the device's size, the share, and the weights."""
    cases = {
        "vllm-iss-05": (s.LLAMA_8B, 20000, 20000, 23.58, 0.9, 1),
        "vllm-iss-06": (s.LLAMA_8B, 29000, 29000, 23.58, 0.9, 1),
        "vllm-iss-08": (s.QWEN25_14B, 131072, 2048, 23.55, 0.98, 2),
        "vllm-iss-09": (s.LLAMA_8B, 131072, 2048, 22.07, 0.9, 1),
    }
    shape, context, batch, total, share, ranks = cases[row]
    seen = observed(row)
    weights = int(seen["weights_gib"] * ranks * GIB)
    made = demand(
        shape, context, kv=BF16, version="V0", batch=batch, sequences=256, tensor_parallel=ranks, weights=weights
    )
    assert split(made, int(total * GIB), share).kv.mid / GIB == pytest.approx(seen["kv_gib"], rel=0.1)


def test_graphs_are_in_the_request_since_0_21() -> None:
    made = demand(s.QWEN_27B, 32768, kv=FP8, weights=17 * GIB)
    before, since = split(replace(made, version="0.20.2"), 24 * GIB), split(replace(made, version="0.21.0"), 24 * GIB)
    assert before.kv.mid - since.kv.mid == pytest.approx(since.graphs.mid)
    assert before.ends.mid - since.ends.mid == pytest.approx(since.graphs.mid)
    assert split(replace(made, weights=24 * GIB), 24 * GIB).kv.high < 0


def test_a_forecast_is_of_one_device() -> None:
    """Heads past the ranks are replicated; latents are never divided."""
    for shape, alike in ((s.QWEN3_8B, False), (s.DEEPSEEK_R1, True)):
        one, four = (
            forecast(Runtime.VLLM, demand(shape, 8192, kv=BF16, weights=GIB, tensor_parallel=n)) for n in (1, 4)
        )
        assert (one.kv == four.kv) is alike
        assert four.weights == one.weights // 4
        assert four.devices == 4
    eight, sixteen = (forecast(Runtime.VLLM, demand(s.QWEN3_8B, 8192, kv=BF16, tensor_parallel=n)).kv for n in (8, 16))
    assert eight == sixteen


def test_latents_were_cached_as_heads_before_0_7_1() -> None:
    """60 layers, 128 / 8 heads, 256 + 256 wide: 0.94 MiB a token and rank, sixteen times what the latents take."""
    made = demand(s.DEEPSEEK_25, 64000, kv=BF16, tensor_parallel=8, version="0.5.4")
    before, since = pool_tokens(made, GIB), pool_tokens(replace(made, version="0.7.1"), GIB)
    assert before is not None
    assert since is not None
    assert before.needed == 64000 * 60 * 16 * 512 * 2
    assert since.needed == 64000 * 60 * 576 * 2


def test_the_sampler_that_sorts_is_the_peak_of_short_prompts() -> None:
    """1.26 GiB of Llama-3-8B at 8192 tokens and 256 sequences (vllm#10511), on one rank or two; less since 0.11."""
    made = demand(s.LLAMA_8B, 8192, kv=BF16, batch=8192, sequences=256, weights=GIB, version="0.6.5")
    for ranks in (1, 2):
        peak = split(replace(made, tensor_parallel=ranks), 80 * GIB).activation
        assert peak.mid / GIB == pytest.approx(1.26, rel=0.05)
    chunked = split(replace(made, context=131072, batch=2048), 80 * GIB).activation
    assert chunked.mid < GIB / 2
    assert split(replace(made, batch=2048, version="0.11.0"), 80 * GIB).activation.mid < GIB / 2
