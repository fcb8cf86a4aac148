"""Memory arithmetic against numbers that engines printed."""

from __future__ import annotations

import pytest

from orchestrator.kinds import Backend, KvType
from orchestrator.memory_fit import (
    MIB,
    Demand,
    attention_token,
    explain,
    fits,
    llama_cpp,
    state_layer,
    vllm,
    vllm_pool,
)
from orchestrator.models import Shape
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
DRAFTER = Shape(layers=5, hidden=5120, attention_layers=5, kv_heads=8, head_dim=128)


def demand(shape: Shape, **more: object) -> Demand:
    fields: dict[str, object] = {"weights": 10**9, "shape": shape, "context": 4096, "parallel": 1, **more}
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
