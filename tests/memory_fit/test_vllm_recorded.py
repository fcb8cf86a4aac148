"""Our pages, groups and blocks against vLLM's own functions: recorded answers for random layouts."""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.memory_fit import pool_tokens
from orchestrator.memory_fit.vllm_layers import grouped
from tests.memory_fit.record_vllm import from_json

RECORDED = Path(__file__).with_name("vllm_pages.jsonl")


def test_every_recorded_layout_comes_out_the_same() -> None:
    header, *lines = map(json.loads, RECORDED.read_text("utf-8").splitlines())
    assert header["vllm"].startswith("0.32.0"), "record again, and look at what that version changed"
    assert len(lines) == header["count"]
    for line in lines:
        demand = from_json(line["demand"])
        layout, held = grouped(demand), pool_tokens(demand, line["pool"])
        assert layout is not None
        assert held is not None
        ours = {
            "groups": layout.count, "block_bytes": layout.block_bytes, "needed": held.needed, "blocks": held.blocks,
            "tokens": held.tokens, "longest": held.longest,
        }  # fmt: skip
        assert ours == line["says"], line["demand"]
