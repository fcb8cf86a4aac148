"""Our pages, groups and blocks against vLLM's own functions: recorded answers for random layouts."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from orchestrator.memory_fit import pool_tokens
from orchestrator.memory_fit.vllm_layers import grouped
from tests.memory_fit.record_vllm import from_json
from tests.runtimes.vllm.venv import ROOT, VERSION, ensure

RECORDED = Path(__file__).with_name("vllm_pages.jsonl")


def test_every_recorded_layout_comes_out_the_same() -> None:
    header, *lines = map(json.loads, RECORDED.read_text("utf-8").splitlines())
    assert header["vllm"].startswith(VERSION), "record again, and look at what that version changed"
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


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_vllm_still_says_what_was_recorded() -> None:
    venv = ensure()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(venv.home)}
    asked = subprocess.run(
        [venv.python, "-m", "tests.memory_fit.record_vllm"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=True,
    )  # fmt: skip
    said = [json.loads(line) for line in asked.stdout.splitlines() if line.startswith("{")]
    assert said[1:] == [json.loads(line) for line in RECORDED.read_text("utf-8").splitlines()[1:]]
