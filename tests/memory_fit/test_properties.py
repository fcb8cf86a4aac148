"""What must hold of every forecast, whatever is asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.kinds import Backend, KvType
from orchestrator.measured import Residual
from orchestrator.memory_fit import (
    Demand,
    corrected,
    forecast,
    largest,
    pool_bytes,
    pool_tokens,
    sglang_pool,
    vllm_pool,
)
from orchestrator.models import Runtime, Shape
from orchestrator.plan import Method
from tests.memory_fit import shapes as s

SHAPES: list[Shape] = [
    s.QWEN_27B, s.QWEN_35B_A3B, s.LLAMA_8B, s.GEMMA_4_12B, s.DEEPSEEK_R1, s.NEMOTRON_253B, s.QWEN3_06B,
]  # fmt: skip
KV = {
    Runtime.LLAMA_CPP: [KvType.F16, KvType.Q8_0, KvType.Q4_0],
    Runtime.VLLM: [KvType.BF16, KvType.FP8, KvType.INT8],
    Runtime.SGLANG: [KvType.BF16, KvType.FP8_E4M3],
}
QUICK = settings(max_examples=60, deadline=None)


@st.composite
def demands(draw: st.DrawFn) -> tuple[Runtime, Demand]:
    """A runtime and something to run with it."""
    runtime = draw(st.sampled_from(list(Runtime)))
    method = draw(st.sampled_from([Method.NONE, Method.NGRAM, Method.MTP, Method.DFLASH, Method.DRAFT]))
    drafter = draw(st.sampled_from([s.DFLASH2, s.QWEN3_06B])) if method in (Method.DFLASH, Method.DRAFT) else None
    return runtime, Demand(
        weights=draw(st.integers(0, 1 << 38)),
        shape=draw(st.sampled_from([*SHAPES, None])),
        context=draw(st.integers(1, 1 << 18)),
        parallel=draw(st.integers(1, 64)),
        method=method,
        draft_tokens=0 if method is Method.NONE else draw(st.integers(1, 15)),
        drafter_bytes=draw(st.integers(0, 1 << 32)),
        drafter_shape=drafter,
        backend=draw(st.sampled_from(list(Backend))),
        kv=draw(st.sampled_from(KV[runtime])),
        batch=draw(st.sampled_from([128, 512, 2048, 8192])),
        tensor_parallel=draw(st.sampled_from([1, 2, 4, 8])),
        prefix_caching=draw(st.booleans()),
        version=draw(st.sampled_from([None, "0.19.1", "0.27.1", "b9010", "b11434"])),
        kv_unified=draw(st.booleans()),
        flash_attention=draw(st.booleans()),
        unified=draw(st.sampled_from([None, True, False])),
        embedding=draw(st.sampled_from([None, 1 << 29])),
        vision=draw(st.booleans()),
    )


@QUICK
@given(demands())
def test_nothing_is_negative_and_the_kinds_add_up(case: tuple[Runtime, Demand]) -> None:
    found = forecast(case[0], case[1])
    kinds = (found.weights, found.kv, found.state, found.drafter, found.compute, found.graphs, found.overhead)
    assert all(part >= 0 for part in (*kinds, found.margin, found.host))
    assert found.likely == sum(kinds) == found.exact + found.estimated
    assert found.low is not None
    assert 0 <= found.low <= found.likely <= found.total
    assert all(isinstance(part, int) for part in (*kinds, found.total, found.margin, found.low, found.host))


@QUICK
@given(demands(), st.sampled_from(["context", "parallel", "draft_tokens", "drafter_bytes", "weights", "batch"]))
def test_more_takes_more(case: tuple[Runtime, Demand], what: str) -> None:
    runtime, demand = case
    more = replace(demand, **{what: getattr(demand, what) * 2 + 1})
    before, after = forecast(runtime, demand), forecast(runtime, more)
    assert after.total >= before.total
    assert after.likely >= before.likely
    assert after.kv + after.state >= before.kv + before.state
    assert after.weights >= before.weights


@QUICK
@given(demands())
def test_more_devices_never_take_more_of_one(case: tuple[Runtime, Demand]) -> None:
    runtime, demand = case
    one, two = (forecast(runtime, replace(demand, tensor_parallel=n)) for n in (1, 2))
    assert two.weights <= one.weights
    assert two.state + two.kv <= one.state + one.kv + (1 << 24)  # a page grows by a step of 16 tokens
    assert two.compute <= one.compute


@QUICK
@given(demands(), st.integers(1 << 28, 1 << 37))
def test_the_inverse_agrees_with_the_forecast(case: tuple[Runtime, Demand], budget: int) -> None:
    runtime, demand = case
    found = largest(runtime, demand, budget)
    if found.context is not None:
        held = replace(demand, context=found.context, cells=None)
        assert forecast(runtime, held).total <= budget
        longer = replace(demand, context=found.context + 256, cells=None)
        limit = 1 << 20 if demand.shape is None else demand.shape.max_context or 1 << 20
        assert found.context + 256 > limit or forecast(runtime, longer).total > budget
    if found.parallel is not None:
        assert forecast(runtime, replace(demand, parallel=found.parallel)).total <= budget
    steps = found.concessions
    assert bool(steps) <= (found.expected.total > budget)
    assert all(not step.enough for step in steps[:-1])
    for step in steps:
        assert step.enough == (forecast(runtime, step.demand).total <= budget)


@QUICK
@given(demands(), st.integers(1 << 24, 1 << 36))
def test_a_pool_of_vllm_and_its_inverse(case: tuple[Runtime, Demand], size: int) -> None:
    demand = case[1]
    held, pool = pool_tokens(demand, size), vllm_pool(demand)
    assert (held is None) == (pool is None)
    if held is None or pool is None:
        return
    least = pool_bytes(demand, held.tokens)
    assert least is not None
    assert least <= size
    again = pool_tokens(demand, least)
    assert again is not None
    assert again.tokens >= held.tokens
    enough = pool_tokens(demand, pool.bytes)
    assert enough is not None
    assert enough.concurrency >= demand.parallel
    assert enough.longest == demand.context


@QUICK
@given(demands(), st.integers(0, 1 << 36))
def test_sglang_never_hands_out_more_than_there_is(case: tuple[Runtime, Demand], free: int) -> None:
    pool = sglang_pool(case[1], free)
    if pool is not None:
        assert pool.tokens >= 0
        assert pool.kv + pool.draft_kv + (pool.state_bytes if pool.tokens else 0) <= free


@QUICK
@given(demands(), st.integers(-(1 << 36), 1 << 36), st.integers(1, 9))
def test_a_correction_is_bounded_and_said(case: tuple[Runtime, Demand], residual: int, starts: int) -> None:
    found = forecast(*case)
    made = corrected(found, Residual(residual, starts, "2026-11-01"))
    after = made.expected
    assert after.weights + after.kv + after.state + after.drafter <= after.total
    assert after.total <= found.total + max(found.likely * 0.15, 2 << 30) + 1
    assert 0 <= after.margin <= found.margin
    assert "2026-11-01" in made.text
    assert (after.correction != residual) == ("counted" in made.text)


def test_a_correction_of_a_settled_host() -> None:
    found = forecast(Runtime.LLAMA_CPP, s.demand(s.QWEN_27B, 32768, weights=16 << 30))
    made = corrected(found, Residual(300 << 20, 3, "2026-11-01"))
    assert made.expected.likely == found.likely + (300 << 20)
    assert made.expected.margin == found.margin // 4
    assert made.text == "3 starts here (last 2026-11-01) took 0.29 GiB more than expected"


@pytest.mark.parametrize("runtime", list(Runtime))
def test_what_is_given_up_first(runtime: Runtime) -> None:
    """llama.cpp's slots before its context; vLLM's context last."""
    made = s.demand(
        s.QWEN_27B, 131072, 8, weights=14 << 30, method=Method.MTP, draft_tokens=4, batch=8192, vision=True,
        kv=KV[runtime][0],
    )  # fmt: skip
    found = largest(runtime, made, 20 << 30)
    order = list(dict.fromkeys(step.what for step in found.concessions))
    ends = {
        Runtime.LLAMA_CPP: ["parallel", "draft_tokens", "batch", "context"],
        Runtime.VLLM: ["batch", "vision", "parallel", "kv", "draft_tokens", "context"],
        Runtime.SGLANG: ["batch", "parallel", "kv", "draft_tokens", "context"],
    }
    assert order == ends[runtime][: len(order)]
    assert found.concessions[-1].enough
    assert all(step.frees > 0 for step in found.concessions if step.what in ("parallel", "kv", "context"))
    assert largest(runtime, found.concessions[-1].demand, 20 << 30).concessions == ()
