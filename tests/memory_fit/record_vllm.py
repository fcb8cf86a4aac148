"""Records what vLLM's own KV manager says of random layer layouts: `vllm_pages.jsonl`.

Run with the interpreter of an environment that has vLLM (the CPU wheel does), from the repository's root:

    PYTHONPATH=. /path/to/bin/python -m tests.memory_fit.record_vllm > tests/memory_fit/vllm_pages.jsonl

The first line says which version; the test compares each further line with our arithmetic.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from types import SimpleNamespace as Fake
from typing import Any

from orchestrator.kinds import Backend, KvType
from orchestrator.memory_fit import Demand
from orchestrator.memory_fit.recurrent import vllm_page
from orchestrator.memory_fit.vllm_layers import BLOCK, grouped
from orchestrator.memory_fit.widths import Layers, attention
from orchestrator.models import Shape
from orchestrator.plan import Method

COUNT = 160


def random_demand(choose: random.Random) -> Demand:
    """A model of any of five families, with or without a drafter, on 1, 2 or 4 ranks."""
    one = choose.choice
    family = one(["dense", "windows", "hybrid", "latent", "latent hybrid"])
    full, windowed = one([4, 8, 12, 16, 30, 32, 61]), one([4, 8, 24, 25, 40, 50]) if family == "windows" else 0
    said: dict[str, Any] = {
        "attention_layers": full + windowed, "kv_heads": one([1, 2, 4, 8, 16]),
        "head_dim": one([64, 128, 256, 512]), "hidden": 4096, "vocab": 1000, "sliding_layers": windowed,
        "sliding_window": one([128, 1024, 2048]) if windowed else None,
        "sliding_kv_heads": one([None, 4, 8]) if windowed else None,
        "sliding_head_dim": one([None, 128, 256]) if windowed else None,
        "linear_layers": one([12, 30, 35, 48]) if "hybrid" in family else 0, "linear_key_heads": 16,
        "linear_value_heads": one([32, 48]), "linear_head_dim": 128,
        "kv_lora_rank": 512 if "latent" in family else None, "mtp_layers": 1, "max_context": 262144,
    }  # fmt: skip
    shape = Shape.model_validate({"layers": full + windowed + said["linear_layers"], **said})
    method = one([Method.NONE, Method.MTP, Method.DFLASH, Method.EAGLE3])
    drafter = None
    if method in (Method.DFLASH, Method.EAGLE3):
        count, in_window = one([1, 5]), one([True, False])
        drafter = Shape(
            layers=count, attention_layers=count, kv_heads=one([4, 8]), head_dim=128,
            sliding_layers=count if in_window else 0, sliding_window=2048 if in_window else None,
        )  # fmt: skip
    return Demand(
        0, shape, one([4096, 20000, 131072, 262144]), 1, method=method,
        draft_tokens=0 if method is Method.NONE else one([1, 3, 7]), drafter_shape=drafter,
        kv=one([KvType.BF16, KvType.FP8]), draft_kv=one([None, None, KvType.BF16]), tensor_parallel=one([1, 2, 4]),
        batch=one([2048, 8192]), prefix_caching=one([True, False]), backend=Backend.CUDA,
    )  # fmt: skip


def answer(demand: Demand, pool: int) -> dict[str, int]:
    """What vLLM makes of the demand's layers and `pool` bytes. Raises NotImplementedError as vLLM does."""
    import torch  # type: ignore[import-not-found,unused-ignore] # noqa: PLC0415 - of the other environment
    from vllm.v1 import kv_cache_interface as specs  # type: ignore[import-not-found,unused-ignore] # noqa: PLC0415
    from vllm.v1.core import kv_cache_utils as manager  # type: ignore[import-not-found,unused-ignore] # noqa: PLC0415
    from vllm.v1.kv_cache_layout import KVCacheLayout  # type: ignore[import-not-found,unused-ignore] # noqa: PLC0415

    shape, ranks = demand.shape, demand.tensor_parallel
    assert shape is not None
    layout = grouped(demand)
    assert layout is not None
    block = layout.block_tokens if shape.linear_layers else BLOCK
    types = {KvType.BF16: torch.bfloat16, KvType.FP8: torch.float8_e4m3fn}
    mode = "align" if demand.prefix_caching else "none"

    def spec(kind: Layers, kv: KvType, tokens: int) -> Any:
        common: dict[str, Any] = {"block_size": tokens, "num_kv_heads": kind.heads, "head_size": kind.keys}
        common["dtype"] = types[kv]
        if kind.latent:
            return specs.MLAAttentionSpec(**common)
        if kind.window:
            return specs.SlidingWindowSpec(**common, head_size_v=kind.values, sliding_window=kind.window)
        return specs.FullAttentionSpec(**common, head_size_v=kind.values)

    layers: dict[str, Any] = {}
    kinds = attention(shape, ranks)
    for number, kind in enumerate(kinds):
        head = shape.mtp_layers if demand.method is Method.MTP and number == 0 else 0
        layers |= {f"target{number}.{i}": spec(kind, demand.kv, block) for i in range(kind.count + head)}
    if demand.drafter_shape is not None:
        kv = demand.draft_kv or demand.kv
        for number, kind in enumerate(attention(demand.drafter_shape, ranks)):
            tokens = block if kv is demand.kv else BLOCK
            layers |= {f"drafter{number}.{i}": spec(kind, kv, tokens) for i in range(kind.count)}
    if shape.linear_layers:
        state = vllm_page(demand, shape)
        page = max(block * kinds[0].token(demand.kv, demand.kv), state)
        for i in range(shape.linear_layers):
            layers[f"state.{i}"] = specs.MambaSpec(
                block_size=block, shapes=((state,),), dtypes=(torch.int8,), page_size_padded=page,
                mamba_cache_mode=mode, num_speculative_blocks=demand.drafted,
            )  # fmt: skip
    config: Any = Fake(
        scheduler_config=Fake(disable_hybrid_kv_cache_manager=False),
        cache_config=Fake(
            get_resolved_kv_cache_layout=lambda: KVCacheLayout.LBNHC, num_gpu_blocks_override=None,
            mamba_cache_mode=mode, prefix_cache_retention_interval=None,
        ),
        model_config=Fake(max_model_len=demand.context, original_max_model_len=demand.context, hf_config=Fake()),
        parallel_config=Fake(
            decode_context_parallel_size=1, tensor_parallel_size=ranks, pipeline_parallel_size=1
        ),
        attention_config=Fake(hisparse_config=None), speculative_config=None,
        max_in_flight_tokens=2 * demand.batch, num_prefill_lookahead_tokens=0,
    )  # fmt: skip
    groups = manager.get_kv_cache_groups(config, dict(layers))
    each = manager._pool_bytes_per_block(config, groups)
    made = manager.get_kv_cache_config_from_groups(config, groups, pool)
    return {
        "groups": len(groups),
        "block_bytes": each,
        "needed": manager._max_memory_usage_bytes_from_groups(config, groups),
        "blocks": made.num_blocks,
        "tokens": manager.get_kv_cache_capacity(config, made)[0],
        "longest": manager._estimate_max_model_len_from_groups(config, groups, pool - each),
    }


def lines(version: str) -> Iterator[dict[str, Any]]:
    """The header and `COUNT` answers; what vLLM refuses to lay out is left out."""
    yield {"vllm": version, "count": COUNT}
    choose, found = random.Random(32), 0
    while found < COUNT:
        demand, pool = random_demand(choose), choose.choice([2, 5, 11]) << 30
        try:
            said = answer(demand, pool)
        except NotImplementedError:
            continue
        found += 1
        yield {"demand": as_json(demand), "pool": pool, "says": said}


def as_json(demand: Demand) -> dict[str, Any]:
    """The fields that are not at their default."""
    plain = Demand(0, None, 0, 0)
    changed = {n: v for n in Demand.__dataclass_fields__ if (v := getattr(demand, n)) != getattr(plain, n)}
    return {n: v.model_dump(exclude_defaults=True) if isinstance(v, Shape) else v for n, v in changed.items()}


def from_json(fields: dict[str, Any]) -> Demand:
    """`as_json` back."""
    made = {"weights": 0, "shape": None, "context": 0, "parallel": 0, **fields}
    shape = Shape.model_validate
    kinds: dict[str, Any] = {
        "method": Method, "kv": KvType, "draft_kv": KvType, "backend": Backend, "shape": shape, "drafter_shape": shape,
    }  # fmt: skip
    return Demand(**{n: kinds[n](v) if n in kinds and v is not None else v for n, v in made.items()})


if __name__ == "__main__":
    import vllm  # type: ignore[import-not-found,unused-ignore]

    for line in lines(vllm.__version__):
        sys.stdout.write(json.dumps(line, separators=(",", ":")) + "\n")
