"""Bugs that ship as restrictions, as they come out in command lines: no adapter repeats them."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator import catalogue, planner, profiles
from orchestrator.catalogue.restrictions import Restriction
from orchestrator.plan import Plan, Planned

SHIPPED = catalogue.shipped()
SERVER, CLAW = profiles.load("dankserver"), profiles.load("dankclaw")


def make(facts: Any, model: str = "qwen3.6-35b-a3b", **what_if: Any) -> Planned:
    return planner.plan(SHIPPED.find(model), facts, SHIPPED, {}, what_if=what_if)


def best(facts: Any, model: str = "qwen3.6-35b-a3b", **what_if: Any) -> Plan:
    plan = make(facts, model, **what_if).plan
    assert plan is not None
    return plan


def test_vllm_on_strix_halo() -> None:
    plan = best(CLAW, runtime="vllm")
    assert "--enforce-eager" in plan.argv
    assert {
        "VLLM_ROCM_USE_AITER": "0",
        "VLLM_USE_TRITON_AWQ": "1",
        "HSA_NO_SCRATCH_RECLAIM": "1",
    }.items() <= plan.env.items()
    assert not {"VLLM_ROCM_USE_AITER", "HSA_NO_SCRATCH_RECLAIM"} & best(SERVER, runtime="vllm").env.keys()


@pytest.mark.parametrize("image", ["llama-cpp-rocm", "llama-cpp-vulkan"])
def test_llama_cpp_reads_weights_on_strix_halo(image: str) -> None:
    plan = best(CLAW, image=image)
    assert plan.argv[plan.argv.index("--load-mode") + 1] == "none"
    assert ("HSA_NO_SCRATCH_RECLAIM" in plan.env) == (image == "llama-cpp-rocm")
    assert "--load-mode" not in best(SERVER, runtime="llama.cpp").argv


def test_vllm_on_a_cpu_captures_nothing() -> None:
    assert "--enforce-eager" in best(SERVER, "qwen3-4b", image="vllm-cpu").argv


def test_block_drafters_of_llama_cpp_have_few_slots() -> None:
    asked = {"runtime": "llama.cpp", "method": "dflash"}
    assert best(SERVER, "qwen3.8-27b", **asked, parallel=4, context=4096).parallel == 4
    refused = {r.code: r for r in make(SERVER, "qwen3.8-27b", **asked, parallel=5).rejected}
    assert "ggml-org/llama.cpp#27117" in (refused["too_many_slots"].source or "")


def test_mtp_hangs_sglang_on_ampere() -> None:
    planned = make(SERVER, "qwen3.8-27b", runtime="sglang", method="mtp")
    assert planned.plan is None
    assert "sglang-ampere-mtp" in {r.code for r in planned.rejected}


def test_an_image_of_ones_own_is_of_no_known_version() -> None:
    """It is taken to be like the shipped one in what it needs and does, not in what version it is."""
    old = Restriction.model_validate({
        "id": "old", "runtime": "llama.cpp", "effect": "refuse", "versions": "<=10000", "text": "it is too old",
        "source": "somebody#1", "date": "2026-11-01",
    })  # fmt: skip
    here = SHIPPED.model_copy(update={"restrictions": (old,)})

    def codes(**what_if: str) -> set[str]:
        return {r.code for r in planner.plan(SHIPPED.find("qwen3.8-27b"), SERVER, here, {}, what_if=what_if).rejected}

    assert "old" not in codes(runtime="llama.cpp")
    assert "old" in codes(runtime="llama.cpp", image="registry.example/llama:1")
