"""Every bug and limit that was reported of the engines has an entry: a restriction, or what deals with it instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator import catalogue
from orchestrator.catalogue.reading import FIELDS, name_of
from orchestrator.catalogue.restrictions import Situation, holding
from orchestrator.kinds import Backend, KvType
from orchestrator.models import Runtime
from orchestrator.plan import Method

ROOT = Path(__file__).parents[2]
CATALOGUE = catalogue.shipped()
KNOWN: tuple[Any, ...] = (*CATALOGUE.restrictions, *CATALOGUE.handled, *CATALOGUE.runtimes)
NAMES = {name_of(entry) for entry in KNOWN}

REPORTS = (
    "z-lab/dflash#146", "vllm-project/vllm#55279", "vllm-project/vllm#41559", "vllm-project/vllm#40756",
    "vllm-project/vllm#53726", "vllm-project/vllm#43559", "vllm-project/vllm#44209", "vllm-project/vllm#49548",
    "vllm-project/vllm#42505", "vllm-project/vllm#47548", "vllm-project/vllm#44879", "vllm-project/vllm#50707",
    "vllm-project/vllm#40898", "#40632", "vllm-project/vllm#51742", "vllm-project/vllm#40875",
    "vllm-project/vllm#39598", "vllm-project/vllm#40334", "PR #37052", "vllm-project/vllm#52873",
    "noonghunna/club-3090#838", "gotcha 37", "amd-strix-halo-vllm-toolboxes#73", "lemonade-sdk/vllm-rocm#24",
    "amd-strix-halo-vllm-toolboxes#72", "vllm-project/vllm#32180", "vllm-project/vllm#37151",
    "vllm-project/vllm#37472", "#36598", "vllm-project/recipes#926", "TheTom/llama-cpp-turboquant#185",
    "ROCm/legacy-rocm-build#6182", "ROCm/rocm-libraries#1132", "ggml-org/llama.cpp#25992", "#25863",
    "halo-box/strix-llama.cpp#28", "ggml-org/llama.cpp#27117", "ggml-org/llama.cpp#26475", "#25345", "#25792",
    "ggml-org/llama.cpp#22105", "ikawrakow/ik_llama.cpp#2260", "sgl-project/sglang#31023", "z-lab/dflash#38",
    "local-inference-lab/vllm#823", "CONTAINER_RUNTIMES", "ROCm/hip#3892", "vllm-project/vllm#42728",
    "sgl-project/sglang#24589", "sgl-project/sglang#31137", "PR #34290", "halo-box/strix-llama.cpp#26",
)  # fmt: skip
"""The reports that a launcher should know, one a bug."""

LIMITS = {
    "vLLM: attention that looks both ways": ("vllm-turboquant-causal-only", "vllm-rocm-aiter-causal"),
    "vLLM: fp8 KV on Ampere": ("vllm-fp8-kv-flash-attn", "vllm-e5m2-flash-attn", "vllm-fp8-kv-triton"),
    "vLLM: KV types with a scale a head": ("vllm-per-token-head-triton-only",),
    "vLLM: DFlash with quantised KV": ("vllm-dflash-quantised-kv-ampere",),
    "vLLM: batched tokens and the lookahead": ("vllm-lookahead",),
    "vLLM: newer model runner": ("vllm-thinking-budget", "vllm-runner-context"),
    "vLLM: older model runner": (
        "vllm-dspark-runner", "vllm-dflash2-runner", "vllm-cpu-dspark", "vllm-cpu-dflash2",
    ),
    "vLLM: prefix caching of hybrids": ("vllm-mtp-prefix-cache", "vllm-hybrid-prefix-mode"),
    "vLLM: KV connectors": ("vllm-kv-connectors",),
    "vLLM: dtype": ("vllm-dflash-dtype",),
    "vLLM: ROCm's backends": ("vllm-rocm-flash-attn", "vllm-rocm-dflash-attention", "vllm-rocm-mla"),
    "vLLM: lengths by running requests": (
        "vllm-dynamic-length", "vllm-dynamic-data-parallel", "vllm-no-switch", "vllm-async-padding",
    ),
    "vLLM: adaptive verification": ("vllm-adaptive-verification",),
    "vLLM: sleep": ("vllm-sleep",),
    "vLLM: keys and names": ("vllm-unknown-keys", "vllm-method-named", "vllm-one-layer-head"),
    "llama.cpp: flags": ("llama-cpp-removed-flags", "llama-cpp-documented-only", "llama-cpp-type-named"),
    "llama.cpp: lengths": ("llama-cpp-length-clamped", "llama-cpp-length-zero"),
    "llama.cpp: DSpark": ("llama-cpp-dspark-backbone",),
    "llama.cpp: states and contexts": ("llama-cpp-state-snapshots", "llama-cpp-no-rollback"),
    "llama.cpp: Ling": (
        "llama-cpp-ling-flash-attention", "llama-cpp-ling-context", "llama-cpp-ling-tensor-split",
    ),
    "llama.cpp: slots": ("llama-cpp-slots-named", "llama-cpp-dflash-slots", "xllamacpp-dflash-slots"),
    "SGLang": (
        "sglang-one-pipeline", "sglang-speculation-slots", "sglang-adaptive", "sglang-rdna", "sglang-3090-graphs",
        "sglang-no-switch", "sglang-no-socket",
    ),
    "claims of recipes": (
        "vllm-strict-sampler", "prs-are-merged", "no-lossless-otherwise", "llama-cpp-sidecars",
        "vllm-hybrid-batch", "vllm-ling-stock-kernels", "llama-cpp-speculation-streams",
    ),
    "seen on CPUs": (
        "llama-cpp-exits-at-once", "llama-cpp-drafter-width", "llama-cpp-no-speculation", "llama-cpp-wrong-kind",
        "llama-cpp-memory-kill", "llama-cpp-keep-alive", "llama-cpp-open-to-pages", "llama-cpp-perfect-acceptance",
        "vllm-many-tokens-an-event", "vllm-synthetic-cpu", "vllm-own-address", "vllm-socket", "socket-path-length",
    ),
    "runtimes": ("ollama", "omlx", "tensorrt-llm"),
}  # fmt: skip


@pytest.mark.parametrize("report", REPORTS)
def test_each_report_has_an_entry(report: str) -> None:
    assert any(report in entry.source for entry in KNOWN)


@pytest.mark.parametrize("topic", LIMITS)
def test_each_limit_has_an_entry(topic: str) -> None:
    assert set(LIMITS[topic]) <= NAMES


def test_what_deals_with_the_rest_is_there() -> None:
    for entry in CATALOGUE.handled:
        for path in entry.by:
            assert (ROOT / path).exists() or (ROOT / f"{path}.py").exists(), f"{entry.id}: {path}"


def test_names_are_said_once_and_everything_has_a_source() -> None:
    for field in FIELDS.values():
        entries: tuple[Any, ...] = getattr(CATALOGUE, field)
        names = [name_of(e) for e in entries]
        assert len(set(names)) == len(names)
        assert all(e.source for e in entries if field != "models")
    ids = [name_of(e) for e in (*CATALOGUE.restrictions, *CATALOGUE.handled, *CATALOGUE.combinations)]
    assert len(set(ids)) == len(ids)


BASE = {"model": "qwen3.8-27b", "hybrid": True, "mla": False, "moe": False, "eager": False}
CASES: list[tuple[str, Runtime, Method, dict[str, object], bool]] = [
    ("vllm-fp8-kv-flash-attn", Runtime.VLLM, Method.NONE,
     {"backend": Backend.CUDA, "arch": "sm_86", "kv": KvType.FP8, "attention_backend": "FLASH_ATTN"}, True),
    ("vllm-fp8-kv-flash-attn", Runtime.VLLM, Method.NONE,
     {"backend": Backend.CUDA, "arch": "sm_90", "kv": KvType.FP8, "attention_backend": "FLASH_ATTN"}, False),
    ("vllm-fp8-kv-triton", Runtime.VLLM, Method.NONE,
     {"backend": Backend.CUDA, "arch": "sm_89", "kv": KvType.FP8, "attention_backend": "TRITON_ATTN"}, False),
    ("vllm-mtp-prefix-cache", Runtime.VLLM, Method.MTP, {"prefix_caching": True, "version": "0.27.1"}, True),
    ("vllm-mtp-prefix-cache", Runtime.VLLM, Method.MTP, {"prefix_caching": True, "version": None}, True),
    ("vllm-mtp-prefix-cache", Runtime.VLLM, Method.MTP, {"prefix_caching": True, "version": "0.33.0"}, False),
    ("vllm-dflash2-stock", Runtime.VLLM, Method.DFLASH, {"drafter": "dflash2-bf16", "version": "0.27.1"}, True),
    ("vllm-dflash2-stock", Runtime.VLLM, Method.DFLASH, {"drafter": "dflash", "version": "0.27.1"}, False),
    ("vllm-dflash2-stock", Runtime.VLLM, Method.DFLASH, {"drafter": "dflash2-bf16", "version": "0.33.0"}, False),
    ("llama-cpp-draft-p-min", Runtime.LLAMA_CPP, Method.DRAFT, {"version": "b11434"}, True),
    ("llama-cpp-draft-p-min", Runtime.LLAMA_CPP, Method.DRAFT, {"version": "b9234"}, False),
    ("llama-cpp-dspark-backbone", Runtime.LLAMA_CPP, Method.DSPARK, {"architecture": "bailingmoe3"}, True),
    ("llama-cpp-dspark-backbone", Runtime.LLAMA_CPP, Method.DSPARK, {"architecture": "qwen3"}, False),
    ("llama-cpp-dspark-backbone", Runtime.LLAMA_CPP, Method.DSPARK, {"architecture": None}, False),
    ("xllamacpp-dflash-slots", Runtime.LLAMA_CPP, Method.DFLASH, {"image": "embedded-cpu"}, True),
    ("xllamacpp-dflash-slots", Runtime.LLAMA_CPP, Method.DFLASH, {"image": "llama-cpp-cuda"}, False),
    ("sglang-rdna", Runtime.SGLANG, Method.NONE, {"backend": Backend.ROCM, "arch": "gfx1151"}, True),
    ("sglang-rdna", Runtime.SGLANG, Method.NONE, {"backend": Backend.ROCM, "arch": "gfx942"}, False),
    ("vllm-gb10-padded-graphs", Runtime.VLLM, Method.NONE, {"backend": Backend.CUDA, "arch": "sm_121"}, True),
    ("vllm-gb10-padded-graphs", Runtime.VLLM, Method.MTP, {"backend": Backend.CUDA, "arch": "sm_121"}, False),
]  # fmt: skip


@pytest.mark.parametrize(("name", "runtime", "method", "facts", "holds"), CASES)
def test_it_holds_where_it_was_seen_and_ends_where_it_was_mended(
    name: str, runtime: Runtime, method: Method, facts: dict[str, object], holds: bool
) -> None:
    seen = Situation(runtime=runtime, method=method, **{**BASE, **facts})  # type: ignore[arg-type]
    assert (name in {r.id for r in holding(CATALOGUE.restrictions, seen)}) is holds
