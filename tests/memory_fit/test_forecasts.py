"""Memory arithmetic against numbers that engines printed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.kinds import Backend, KvType
from orchestrator.memory_fit import (
    MIB,
    Demand,
    attention_token,
    explain,
    fits,
    forecast,
    largest,
    limits,
    llama_cpp,
    pool_bytes,
    pool_tokens,
    sglang_pool,
    split,
    state_layer,
    unpackable,
    vllm,
    vllm_pool,
)
from orchestrator.models import Runtime, Shape
from orchestrator.plan import Method

DENSE_27B = Shape(
    layers=64, hidden=5120, vocab=248320, attention_layers=16, kv_heads=4, head_dim=256, linear_layers=48,
    linear_key_heads=16, linear_value_heads=48, linear_head_dim=128, max_context=262144, mtp_layers=1,
)  # fmt: skip
MOE_35B = Shape(
    layers=40, hidden=2048, vocab=248320, attention_layers=10, kv_heads=2, head_dim=256, linear_layers=30,
    linear_key_heads=16, linear_value_heads=32, linear_head_dim=128, max_context=262144, mtp_layers=1,
)  # fmt: skip
KIMI = Shape(layers=61, attention_layers=61, kv_heads=1, head_dim=576, kv_lora_rank=512, rope_head_dim=64)
DENSE_LLAMA = Shape(layers=32, attention_layers=32, kv_heads=8, head_dim=128)
DRAFTER = Shape(layers=5, hidden=5120, attention_layers=5, kv_heads=8, head_dim=128)


def demand(shape: Shape, **more: object) -> Demand:
    fields: dict[str, object] = {
        "weights": 10**9,
        "shape": shape,
        "context": 4096,
        "parallel": 1,
        "backend": Backend.CUDA,
    }
    fields |= more
    return Demand(**fields)  # type: ignore[arg-type]


def test_kv_bytes_a_token() -> None:
    assert attention_token(DENSE_27B, KvType.F16) * 16 == 65536
    assert attention_token(DENSE_27B, KvType.FP8) * 16 == 32768
    assert attention_token(MOE_35B, KvType.BF16) * 10 == 20480
    assert attention_token(KIMI, KvType.BF16) * 61 == 70272
    assert attention_token(DENSE_27B, KvType.Q4_0) * 16 * 262144 == 4608 * MIB  # 4.5 of 16 bits


@pytest.mark.parametrize(("shape", "mib"), [(DENSE_27B, 149.62), (MOE_35B, 62.81)])
def test_recurrent_state_a_sequence(shape: Shape, mib: float) -> None:
    assert state_layer(shape) * shape.linear_layers / MIB == pytest.approx(mib, abs=0.01)


def test_recurrent_state_multiplies_with_slots_and_drafted_tokens() -> None:
    one = llama_cpp(demand(DENSE_27B, parallel=4, method=Method.MTP, draft_tokens=2))
    assert one.state / MIB == pytest.approx(1795, abs=1)
    assert llama_cpp(demand(DENSE_27B, method=Method.NONE, draft_tokens=0)).state / MIB == pytest.approx(
        149.62, abs=0.01
    )
    assert llama_cpp(demand(DENSE_27B, method=Method.NGRAM, draft_tokens=8)).state / MIB == pytest.approx(
        149.62, abs=0.01
    )


@pytest.mark.parametrize(
    ("shape", "kv", "method", "draft", "block"),
    [
        (DENSE_27B, KvType.FP8, Method.NONE, 0, 1568),
        (DENSE_27B, KvType.FP8, Method.MTP, 3, 1600),
        (DENSE_27B, KvType.FP8, Method.MTP, 4, 1616),
        (DENSE_27B, KvType.BF16, Method.NONE, 0, 784),
        (MOE_35B, KvType.BF16, Method.NONE, 0, 1056),
        (MOE_35B, KvType.FP8, Method.NONE, 0, 2096),
    ],
)
def test_vllm_blocks_of_hybrids(shape: Shape, kv: KvType, method: Method, draft: int, block: int) -> None:
    """Block sizes that vLLM printed ("Setting attention block size to N tokens")."""
    pool = vllm_pool(demand(shape, kv=kv, method=method, draft_tokens=draft))
    assert pool is not None
    assert pool.block_tokens == block


def test_vllm_groups_of_27b_with_mtp() -> None:
    """17 attention layers (one is the MTP head's) and 48 linear ones: four groups of 17."""
    pool = vllm_pool(demand(DENSE_27B, kv=KvType.FP8, method=Method.MTP, draft_tokens=3, context=16000))
    assert pool is not None
    assert pool.block_bytes == 1600 * 2048 * 17
    assert (pool.token_blocks, pool.state_blocks) == (10, 12)
    assert pool.blocks == 10 + 12 + 1


def test_vllm_plain_pool_is_tokens_times_bytes() -> None:
    llama_8b = Shape(layers=32, attention_layers=32, kv_heads=8, head_dim=128)
    pool = vllm_pool(demand(llama_8b, kv=KvType.BF16, context=8192, parallel=4))
    assert pool is not None
    assert pool.bytes == (4 * 512 + 1) * 16 * 131072


@pytest.mark.parametrize("flavour", [llama_cpp, vllm])
def test_totals_add_up_and_grow(flavour: object) -> None:
    assert callable(flavour)
    base = {"backend": Backend.CUDA, "method": Method.DFLASH, "draft_tokens": 7, "drafter_bytes": 10**9}
    small = flavour(demand(DENSE_27B, drafter_shape=DRAFTER, **base), budget=10**10)
    kinds = small.weights + small.kv + small.state + small.drafter + small.compute + small.graphs + small.overhead
    assert small.likely == kinds
    assert small.total == kinds + small.margin
    assert small.low is not None
    assert small.low <= small.likely <= small.total
    assert not fits(flavour(demand(DENSE_27B, drafter_shape=DRAFTER, **base), budget=small.total - 1))
    assert fits(flavour(demand(DENSE_27B, drafter_shape=DRAFTER, **base), budget=small.total))
    assert fits(flavour(demand(DENSE_27B, drafter_shape=DRAFTER, **base)))
    for change in ({"context": 8192}, {"parallel": 2}, {"draft_tokens": 8}, {"drafter_bytes": 2 * 10**9}):
        more = flavour(demand(DENSE_27B, drafter_shape=DRAFTER, **{**base, **change}))
        assert more.total > small.total
    text = explain(small)
    assert str(small.total) in text
    assert str(small.budget) in text


def test_shapes_without_attention_or_anything() -> None:
    mamba = Shape(layers=4, attention_layers=0, kv_heads=0, head_dim=0, linear_layers=4, linear_value_heads=2,
                  linear_head_dim=32)  # fmt: skip
    assert vllm(demand(mamba)).state > 0
    assert llama_cpp(demand(mamba)).kv == 0
    assert vllm_pool(Demand(weights=1, shape=None, context=1, parallel=1)) is None
    assert llama_cpp(Demand(weights=1, shape=None, context=1, parallel=1)).kv == 0


def test_blocks_on_a_cpu_are_larger_but_for_latents() -> None:
    """vLLM's CPU platform takes 128 tokens (platforms/cpu.py), 16 for latents."""
    for shape, block in ((DENSE_LLAMA, 128), (KIMI, 16)):
        pool = vllm_pool(demand(shape, kv=KvType.BF16, context=1000, backend=Backend.CPU))
        assert pool is not None
        assert pool.block_tokens == block
        assert pool.token_blocks == -(-1000 // block)


def test_latents_beside_states_take_no_drafter_of_another_page() -> None:
    """vLLM 0.32.0 raises NotImplementedError for it."""
    hybrid = KIMI.model_copy(
        update={"linear_layers": 35, "linear_value_heads": 32, "linear_key_heads": 16, "linear_head_dim": 128}
    )
    drafting = {"method": Method.DFLASH, "draft_tokens": 7, "kv": KvType.BF16}
    assert unpackable(demand(hybrid, drafter_shape=DRAFTER, **drafting))
    assert not unpackable(demand(hybrid, kv=KvType.BF16))
    assert not unpackable(demand(DENSE_27B, drafter_shape=DRAFTER, **drafting))
    assert not unpackable(demand(KIMI, drafter_shape=DRAFTER, **drafting))


@pytest.mark.parametrize("runtime", list(Runtime))
def test_absolute_limits_use_what_is_free(runtime: Runtime) -> None:
    """Of 24 GB free: whole blocks, no more than there is, no less than was asked for."""
    made = demand(DENSE_27B, weights=15 * 10**9, context=16384, parallel=2, kv=KvType.BF16)
    told = limits(runtime, made, 24 * 10**9)
    assert told is not None
    if runtime is Runtime.LLAMA_CPP:
        assert told.cells is not None
        held = replace(made, context=told.cells // 2)
        assert forecast(runtime, held).total <= 24 * 10**9
        assert told.cells >= 2 * 16384
    elif runtime is Runtime.VLLM:
        pool = vllm_pool(made)
        assert pool is not None
        assert told.pool is not None
        assert told.pool % pool.block_bytes == 0
        spare = 24 * 10**9 - forecast(runtime, made).total
        assert pool.bytes + spare - pool.block_bytes < told.pool <= pool.bytes + spare
        assert told.tokens is not None
        assert told.tokens > 2 * 16384
    else:
        assert told.tokens is not None
        assert told.tokens >= 2 * 16384
    assert limits(runtime, made, 12 * 10**9) is None
    assert limits(runtime, made, 24 * 10**9, correction=24 * 10**9) is None
    assert limits(runtime, replace(made, shape=None), 24 * 10**9) is None


@pytest.mark.parametrize("runtime", list(Runtime))
@given(st.data())
@settings(max_examples=80, deadline=None)
def test_no_shape_that_can_be_written_breaks_a_forecast(runtime: Runtime, data: st.DataObject) -> None:
    """Zeros, windows without layers, layers of nothing, heads of nothing."""
    small, wide = st.integers(0, 8), st.integers(1, 64)
    layers = data.draw(wide)
    attending, linear = (data.draw(st.integers(0, min(layers, 8))) for _ in range(2))
    sliding = data.draw(st.integers(0, attending))
    shape = Shape(
        layers=layers, hidden=data.draw(st.none() | wide), intermediate=data.draw(st.none() | wide),
        vocab=data.draw(st.none() | wide), heads=data.draw(st.none() | wide), attention_layers=attending,
        kv_heads=data.draw(small), head_dim=data.draw(small), value_dim=data.draw(st.none() | wide),
        kv_heads_by_layer=tuple(data.draw(st.lists(small, max_size=4))), sliding_layers=sliding,
        sliding_window=data.draw(wide if sliding else st.none() | wide), linear_layers=linear,
        linear_key_heads=data.draw(small), linear_value_heads=data.draw(small), linear_head_dim=data.draw(small),
        kv_lora_rank=data.draw(st.none() | wide), mtp_layers=data.draw(st.integers(0, 2)),
    )  # fmt: skip
    made = demand(
        shape, context=data.draw(st.integers(0, 4096)), parallel=data.draw(st.integers(0, 4)),
        method=data.draw(st.sampled_from(list(Method))), draft_tokens=data.draw(small), drafter_shape=shape,
        kv=data.draw(st.sampled_from(list(KvType))), tensor_parallel=data.draw(st.sampled_from([1, 3, 16])),
        backend=data.draw(st.sampled_from(list(Backend))), kv_unified=data.draw(st.booleans()),
        cells=data.draw(st.none() | small), prefix_caching=data.draw(st.booleans()),
    )  # fmt: skip
    found = forecast(runtime, made)
    assert found.total >= found.likely >= 0
    largest(runtime, made, 1 << 20)
    held = pool_tokens(made, 1 << 30)
    assert held is None or held.tokens >= 0
    pool_bytes(made, 100)
    sglang_pool(made, 1 << 30)
    split(made, 1 << 34)
    limits(runtime, made, 1 << 34)
