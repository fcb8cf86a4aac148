"""Verdicts beyond the public logs: models by their facts, stages, drivers' limits, honest unknowns."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.fit import fit, read
from orchestrator.fit.budget import FOUR_SLOTS
from orchestrator.fit.devices import GIB, device
from orchestrator.kinds import Backend
from orchestrator.models import Runtime

FACTS: dict[str, Any] = {
    "num_hidden_layers": 40, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 100_000, "max_position": 65536,
}  # fmt: skip
NEW = {"engine": "vllm", "engine_version": "0.33.0", "gpu": "RTX 3090", "gpu_mem_gib": 24, "model": "Brand-New-12B"}


def answer(**row: Any) -> dict[str, Any]:
    return fit(read(row)).to_dict()


def test_a_model_that_nobody_knows_by_its_facts_and_bytes() -> None:
    found = answer(**NEW, facts=FACTS, weight_bytes=12_000_000_000, ctx_per_request=32768)
    assert found["verdict"] == "fits"
    assert found["known_model"] is None
    # 40 layers x 8 heads x (128 + 128) x 2 bytes a token, no block left over
    assert found["needed_gib"] == pytest.approx(32768 * 40 * 8 * 256 * 2 / GIB, abs=1e-4)
    assert found["weights_gib"] == pytest.approx(12e9 / GIB, abs=1e-4)
    assert answer(**NEW, facts=FACTS, weight_bytes=12_000_000_000, ctx_per_request=300_000)["verdict"] == "too_big"


def test_without_facts_it_is_unknown_and_says_what_is_missing() -> None:
    found = answer(**NEW, ctx_per_request=32768)
    assert found["verdict"] == "unknown"
    assert {"model_unknown", "weights_unknown"} <= {reason["code"] for reason in found["reasons"]}
    found = answer(**NEW, facts={"num_hidden_layers": 40}, weight_bytes=12_000_000_000, ctx_per_request=32768)
    assert found["verdict"] == "unknown"
    assert found["unknown"]["facts"] == "facts lack num_key_value_heads, head_dim"


def test_weights_alone_that_do_not_fit_need_no_shape() -> None:
    assert answer(**NEW, quant="bf16", weight_bytes=40_000_000_000)["verdict"] == "too_big"


def test_facts_of_a_hybrid() -> None:
    facts = {
        **FACTS, "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
    }  # fmt: skip
    row = {**NEW, "engine": "llama.cpp", "engine_version": "b11000", "weight_bytes": 8_000_000_000, "parallel": 1}
    found = answer(**row, facts=facts, ctx_per_request=8192)
    assert found["kv_gib"] == pytest.approx(10 * 8192 * 8 * 256 * 2 / GIB, abs=1e-4)
    layer = 3 * (32 * 128 + 2 * 16 * 128) * 4 + 32 * 128 * 128 * 4
    assert found["rs_gib"] == pytest.approx(30 * layer / GIB, abs=1e-4)


def test_stages_of_a_pipeline_are_judged_by_the_tightest() -> None:
    found = answer(
        engine="vllm", engine_version="0.15.2", gpu="RTX 5070 Ti (16303 MiB) + RTX 5090 D (32607 MiB)",
        model="Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8", ctx_per_request=262144,
        launch={"pipeline_parallel_size": 2, "VLLM_PP_LAYER_PARTITION": "16,32", "gpu_memory_utilization": 0.9},
    )  # fmt: skip
    assert found["verdict"] == "too_big"
    assert found["needed_gib"] == 24.0
    assert found["available_gib"] == pytest.approx(3.18, rel=0.4)  # as vllm#34076 printed


def test_a_buffer_that_no_vulkan_driver_gives() -> None:
    row = {"model": "Qwen3-32B", "quant": "Q4_K_M", "ctx_per_request": 131072, "parallel": 1, "gpu_mem_gib": 192}
    launch = {"flash_attn": 0, "n_ctx": 131072}
    refused = answer(engine="llama.cpp", gpu="MI300X (Vulkan)", launch=launch, **row)
    assert refused["verdict"] == "too_big"
    assert refused["reasons"][0]["code"] == "buffer_limit"
    assert answer(engine="llama.cpp", gpu="MI300X", launch=launch, **row)["verdict"] == "fits"


def test_a_card_of_two_sizes_is_not_guessed() -> None:
    row = {"engine": "vllm", "model": "google/gemma-4-26B-A4B", "quant": "bf16", "ctx_per_request": 32768}
    assert answer(gpu="A100", **row)["verdict"] == "unknown"
    assert answer(gpu="A100", gpu_mem_gib=80, **row)["verdict"] == "fits"
    assert answer(gpu="A100", gpu_mem_gib=40, **row)["verdict"] == "too_big"
    assert "40" not in answer(gpu="A100", **row)["assumed"]["gpu_mem_gib"].split(":")[0]


def test_a_longest_context_that_was_not_asked_for_is_no_refusal() -> None:
    row = {"engine": "vllm", "model": "Qwen/Qwen3.8-27B-FP8", "gpu": "2x RTX 3090", "gpu_mem_gib": 24, "tp": 2}
    found = answer(**row, launch={"gpu_memory_utilization": 0.8})
    assert found["verdict"] == "unknown"
    assert found["reasons"][0]["code"] == "context_unknown"


@pytest.mark.parametrize(
    ("gpu", "count", "usable", "backend"),
    [
        ("2x RTX 3090 (NVLink)", 2, 23.57, Backend.CUDA),
        ("RTX 5090 Laptop", 1, 23.5, Backend.CUDA),
        ("AMD Radeon 8060S (Strix Halo gfx1151), ROCm", 1, 120.0, Backend.ROCM),
        ("RX 7900 XTX (RADV)", 1, 23.98, Backend.VULKAN),
        ("8151 MiB laptop GPU (CUDA)", 1, 8151 / 1024, Backend.CUDA),
        ("A100 40GB", 1, 39.5, Backend.CUDA),
    ],
)
def test_devices(gpu: str, count: int, usable: float, backend: Backend) -> None:
    found = device(gpu, None, Runtime.LLAMA_CPP)
    assert (found.count, found.backend) == (count, backend)
    assert found.usable == pytest.approx(usable * GIB, rel=0.001)


def test_slots_of_llama_server_by_build() -> None:
    row = {"engine": "llama.cpp", "model": "Qwen3.8-27B gguf", "ctx_per_request": 8192}
    modern = answer(**row, engine_version=f"b{FOUR_SLOTS}")
    older = answer(**row, engine_version="b5000")
    assert modern["rs_gib"] == pytest.approx(4 * older["rs_gib"], rel=0.001)
    assert modern["kv_gib"] == older["kv_gib"]
    assert "4 slots" in modern["assumed"]["parallel"]


def test_a_pool_is_forecast_only_where_the_share_is_said() -> None:
    row = {"engine": "vllm", "engine_version": "0.27.1", "model": "Qwen/Qwen3-8B", "gpu": "RTX 3090", "gpu_mem_gib": 24}
    said = answer(**row, launch={"gpu_memory_utilization": 0.9}, ctx_per_request=8192)
    assumed = answer(**row, ctx_per_request=8192)
    assert said["kv_gib"] == said["available_gib"]
    assert "kv_gib" not in assumed
    assert assumed["available_gib"] > said["available_gib"]


def test_a_model_without_a_quantisation_that_would_not_fit_is_quantised_somehow() -> None:
    row = {"engine": "vllm", "model": "Qwen3.6-27B", "gpu": "RTX 3090", "gpu_mem_gib": 24, "kv_dtype": "fp8"}
    found = answer(**row, ctx_per_request=8192)
    assert found["verdict"] == "unknown"
    assert "weights_gib" not in found
    assert answer(**row, ctx_per_request=262144)["verdict"] == "too_big"  # not in four bits either


def test_experts_left_to_the_cpu_leave_the_device_unknown() -> None:
    row = {"engine": "llama.cpp", "gpu": "RTX 3090", "model": "gpt-oss-120b F16 gguf", "ctx_per_request": 32768}
    everything = answer(**row, parallel=1)
    assert everything["verdict"] == "too_big"
    held = everything["weights_gib"] + everything["host_weights_gib"]
    assert held == pytest.approx(60.87, rel=0.001)  # the file, as ggml-org/llama.cpp#15105 has it
    assert answer(**row, parallel=1, launch={"n_cpu_moe": 30})["verdict"] == "unknown"


@pytest.mark.parametrize(
    ("gpu", "gib", "count", "usable"),
    [
        ("RTX3090-24G", None, 1, 23.57), ("2x RTX 3090", 48, 2, 23.57), ("RTX 4090 x2", None, 2, 23.55),
        ("4*L40S", None, 4, 44.4), ("NVIDIA A800-SXM4-80GB", None, 1, 79.2), ("RTX 4070 Laptop GPU", None, 1, 7.7),
        ("RTX 4070 Ti SUPER", 16, 1, 15.6), ("RTX A4000", None, 1, 15.7), ("RTX 2080 Ti", 22, 1, 21.5),
        ("AMD Radeon RX 9060 XT 16GB", None, 1, 15.9), ("2x GPU", 24, 2, 23.64),
    ],
)  # fmt: skip
def test_more_devices(gpu: str, gib: int | None, count: int, usable: float) -> None:
    found = device(gpu, None if gib is None else gib * GIB, Runtime.VLLM)
    assert found.count == count
    assert found.usable == pytest.approx(usable * GIB, rel=0.001)


def test_all_named_devices_share_a_model_unless_something_else_is_said() -> None:
    row = {"engine": "vllm", "model": "Qwen/Qwen3-32B", "gpu": "2x RTX 6000 Ada", "ctx_per_request": 8192}
    two, one = answer(**row), answer(**row, tp=1)
    assert two["weights_gib"] == pytest.approx(one["weights_gib"] / 2, rel=0.001)
    assert two["assumed"]["tp"].startswith("2 ")
    assert "tp" not in answer(**row, launch={"data_parallel_size": 2})["assumed"]
    assert "tp" not in answer(**{**row, "gpu": "3x RTX 6000 Ada"})["assumed"]  # 64 heads do not divide by 3


def test_nothing_left_is_no_negative_cache() -> None:
    row = {"engine": "vllm", "model": "Qwen/Qwen3-32B", "gpu": "RTX 4090", "ctx_per_request": 8192}
    found = answer(**row)
    assert found["verdict"] == "too_big"
    assert "kv_gib" not in found
    assert found["short_gib"] == pytest.approx(found["needed_gib"] - found["available_gib"], abs=1e-3)
    assert "short_gib" not in answer(**row, quant="awq", launch={"max_num_seqs": 16})


def test_a_quantisation_among_the_flags() -> None:
    row = {"engine": "vllm", "model": "org/Qwen3-32B-tuned", "gpu": "RTX 4090", "ctx_per_request": 8192}
    assert answer(**row, launch={"quantization": "awq_marlin"})["quantisation"] == "awq"
    assert answer(**row)["quantisation"] is None
    assert answer(**{**row, "model": "Qwen/Qwen3-32B"})["quantisation"] == "bf16"  # as its maker publishes it


@pytest.mark.parametrize("flag", [{"n_cpu_moe": 99}, {"override_tensor": "exps=CPU"}, {"kt_method": "AMXINT4"}])
def test_tensors_in_system_memory_are_not_weighed_on_the_device(flag: dict[str, Any]) -> None:
    for engine in ("llama.cpp", "sglang", "vllm"):
        found = answer(engine=engine, model="Qwen3-30B-A3B Q4_K_M", gpu="RTX 3070", ctx_per_request=8192, launch=flag)
        assert found["verdict"] == "unknown", engine
        assert "weights_gib" not in found, engine


def test_flash_attention_is_the_default_of_newer_builds() -> None:
    """Without it scores of all heads are kept: 560 MiB as printed for Llama-3-8B at 8192 tokens."""
    row = {"engine": "llama.cpp", "model": "Meta-Llama-3-8B-Instruct Q4_K_M", "ctx_per_request": 8192, "parallel": 1}
    older = answer(**row, engine_version="b3091")
    assert older["compute_gib"] * 1024 == pytest.approx(560, rel=0.001)
    assert answer(**row, engine_version="b6500")["compute_gib"] < older["compute_gib"]
    asked = answer(**row, engine_version="b3091", launch={"flash_attn": "on"})
    assert asked["compute_gib"] < older["compute_gib"]


def test_a_version_behind_the_engines_name_is_read() -> None:
    row = {"model": "Qwen/Qwen3-8B", "gpu": "NVIDIA GeForce RTX 3090 (x2)", "ctx_per_request": 8192}
    old, new = answer(engine="vLLM 0.10.2", **row), answer(engine="vLLM 0.27.1", **row)
    assert old["budget_gib"] < new["budget_gib"]  # 0.9 of the card, and 0.92
    assert old["assumed"]["tp"].startswith("2 ")


def test_experts_of_gpt_oss_are_mxfp4_in_every_gguf() -> None:
    row = {"engine": "llama.cpp", "gpu": "RTX 4090", "ctx_per_request": 8192, "parallel": 1}
    found = answer(model="unsloth/gpt-oss-20b-GGUF gpt-oss-20b-F16.gguf", **row)
    assert (found["weights_gib"] + found["host_weights_gib"]) * GIB == pytest.approx(13.8e9, rel=0.03)
    assert found["verdict"] == "fits"


def test_no_figure_of_a_pool_that_is_not_there() -> None:
    """A card that is smaller than what SGLang keeps back; and unified memory is told by an Apple's text."""
    found = answer(engine="sglang", model="Qwen/Qwen3-32B", gpu="GPU", gpu_mem_gib=2, ctx_per_request=8192)
    assert found["verdict"] == "too_big"
    assert not {"kv_gib", "kv_tokens", "budget_gib", "mem_fraction_static"} & found.keys()
    assert found["short_gib"] > 0
    studio = device("Mac Studio M2 Ultra 192GB", None, Runtime.LLAMA_CPP)
    assert studio.usable == 144 * GIB


def test_whether_devices_share_a_model_decides_only_where_one_is_enough_for_its_weights() -> None:
    row = {"engine": "vllm", "engine_version": "0.7.2", "gpu": "2x RTX 3090", "gpu_mem_gib": 24}
    small = answer(**row, model="meta-llama/Llama-3.1-8B-Instruct", ctx_per_request=131072)
    assert (small["verdict"], small["reasons"][0]["code"]) == ("unknown", "tp_unknown")
    assert answer(**row, model="meta-llama/Llama-3.1-8B-Instruct", ctx_per_request=16384)["verdict"] == "fits"
    assert answer(**row, model="Qwen/Qwen2.5-14B-Instruct", ctx_per_request=16384)["verdict"] == "fits"
