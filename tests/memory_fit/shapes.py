"""Models of the rows, by hand, from `config.json` and GGUF metadata as public logs print them."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from orchestrator.kinds import Backend
from orchestrator.memory_fit import Demand
from orchestrator.models import Shape

GIB = 1 << 30
MIB = 1 << 20


@lru_cache(maxsize=1)
def rows() -> dict[str, dict[str, Any]]:
    """The rows of public logs, by id."""
    lines = (Path(__file__).parents[1] / "fit" / "truth.jsonl").read_text("utf-8").splitlines()
    return {row["id"]: row for row in map(json.loads, lines)}


def observed(row: str) -> dict[str, Any]:
    """What a row's log printed."""
    seen: dict[str, Any] = rows()[row]["observed"]
    return seen


QWEN_27B = Shape(
    layers=64, hidden=5120, intermediate=17408, vocab=248320, heads=24, attention_layers=16, kv_heads=4, head_dim=256,
    linear_layers=48, linear_key_heads=16, linear_value_heads=48, linear_head_dim=128, mtp_layers=1, max_context=262144,
)  # fmt: skip
QWEN_35B_A3B = Shape(
    layers=40, hidden=2048, vocab=248320, heads=16, attention_layers=10, kv_heads=2, head_dim=256, linear_layers=30,
    linear_key_heads=16, linear_value_heads=32, linear_head_dim=128, mtp_layers=1, max_context=262144, experts=256,
    experts_used=8,
)  # fmt: skip
QWEN_NEXT = Shape(
    layers=48, hidden=2048, vocab=151936, heads=16, attention_layers=12, kv_heads=2, head_dim=256, linear_layers=36,
    linear_key_heads=16, linear_value_heads=32, linear_head_dim=128, max_context=262144,
)  # fmt: skip


def dense(layers: int, kv_heads: int, **more: object) -> Shape:
    """Plain attention in every layer, heads 128 wide unless said."""
    fields = {"head_dim": 128, **more}
    return Shape(layers=layers, attention_layers=layers, kv_heads=kv_heads, **fields)  # type: ignore[arg-type]


def gemma(full: int, window: int, full_heads: int, window_heads: int, hidden: int) -> Shape:
    """Gemma 4: windows of 1024 with heads of 256, every sixth layer over the whole length with heads of 512."""
    return dense(
        full + window, full_heads, head_dim=512, hidden=hidden, heads=16, vocab=262144, sliding_layers=window,
        sliding_window=1024, sliding_kv_heads=window_heads, sliding_head_dim=256,
    )  # fmt: skip


LLAMA_8B = dense(32, 8, hidden=4096, intermediate=14336, vocab=128256, heads=32)
QWEN3_06B = dense(28, 8, hidden=1024, vocab=151936, heads=16)
QWEN3_4B = dense(36, 8, hidden=2560, vocab=151936, heads=32)
QWEN3_8B = dense(36, 8, hidden=4096, intermediate=12288, vocab=151936, heads=32)
QWEN3_30B = dense(48, 4, hidden=2048, vocab=151936, heads=32)
QWEN3_32B = dense(64, 8, hidden=5120, vocab=151936, heads=64)
QWEN3_235B = dense(94, 4)
QWEN25_7B = dense(28, 4, hidden=3584, vocab=152064, heads=28)
QWEN25_14B = dense(48, 8, hidden=5120, intermediate=13824, vocab=152064, heads=40)
GLM_32B = dense(61, 2, hidden=6144, vocab=151552, heads=48)
NEMOTRON_253B = Shape(
    layers=162, attention_layers=64, kv_heads=8, head_dim=128, kv_heads_by_layer=(8,) * 64 + (0,) * 98
)
GEMMA_3_27B = dense(62, 16, hidden=5376, vocab=262208, heads=32, sliding_layers=52, sliding_window=1024)
GEMMA_4_12B = gemma(8, 40, 1, 8, 3840)
GEMMA_4_26B = gemma(5, 25, 2, 8, 2816)
GEMMA_4_31B = gemma(10, 50, 4, 16, 5376)
DEEPSEEK_R1 = dense(
    61, 128, hidden=7168, heads=128, vocab=129280, head_dim=192, value_dim=128, kv_lora_rank=512, rope_head_dim=64
)
DEEPSEEK_25 = dense(
    60, 128, hidden=5120, heads=128, vocab=102400, head_dim=192, value_dim=128, kv_lora_rank=512, rope_head_dim=64
)
DFLASH2 = Shape(layers=5, hidden=5120, attention_layers=5, kv_heads=8, head_dim=128, sliding_layers=5,
                sliding_window=2048)  # fmt: skip


def demand(shape: Shape | None, context: int, parallel: int = 1, **more: object) -> Demand:
    """A demand on a CUDA device, without weights unless said."""
    fields: dict[str, object] = {"weights": 0, "backend": Backend.CUDA, **more}
    return Demand(shape=shape, context=context, parallel=parallel, **fields)  # type: ignore[arg-type]
