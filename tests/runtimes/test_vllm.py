"""vLLM's adapter: argv, attention rules, metrics, failure signatures."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from orchestrator.kinds import Backend, KvType
from orchestrator.models import Ngram, Runtime
from orchestrator.plan import Method
from orchestrator.runtimes import LaunchRequest, adapter

VLLM = adapter(Runtime.VLLM)
CUDA = LaunchRequest(
    model="/models/target",
    names=("big", "org/Big"),
    context=8192,
    parallel=2,
    backend=Backend.CUDA,
    arch="sm_86",
    kv=KvType.BF16,
    kv_pool=1 << 30,
    memory_share=0.934,
    batch=2048,
    version="0.33.0",
)
ROCM = replace(CUDA, backend=Backend.ROCM, arch="gfx1151", eager=True, prefix=("vllm", "serve"))
DFLASH = {"method": Method.DFLASH, "drafter": "/models/drafter", "draft_tokens": 7}


def argument(argv: tuple[str, ...], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def test_plain() -> None:
    command = VLLM.command(CUDA)
    argv = command.argv
    assert argv[:4] == ("/models/target", "--served-model-name", "big", "org/Big")
    assert argument(argv, "--uds") == "/run/engine/engine.sock"
    assert argument(argv, "--dtype") == "bfloat16"
    assert argument(argv, "--kv-cache-memory-bytes") == str(1 << 30)
    assert argument(argv, "--gpu-memory-utilization") == "0.93"
    assert argument(argv, "--kv-cache-dtype") == "bfloat16"
    assert "--language-model-only" in argv
    assert "--speculative-config" not in argv
    assert "--enforce-eager" not in argv
    assert command.env["VLLM_API_KEY"] == "{key}"
    assert command.env["HF_HUB_OFFLINE"] == "1"
    assert {path for _, path in command.caches} == {
        command.env[name] for name in ("VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
    }


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (DFLASH, {"method": "dflash", "model": "/models/drafter", "num_speculative_tokens": 7}),
        ({"method": Method.MTP, "draft_tokens": 1}, {"method": "mtp", "num_speculative_tokens": 1}),
        (
            {**DFLASH, "method": Method.DRAFT},
            {"method": "draft_model", "model": "/models/drafter", "num_speculative_tokens": 7},
        ),
        (
            {"method": Method.NGRAM, "draft_tokens": 8, "ngram": Ngram(match=4, longest=8)},
            {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_max": 8, "prompt_lookup_min": 8},
        ),
        (
            {**DFLASH, "schedule": ((1, 7, 7), (8, 16, 0))},
            {
                "method": "dflash", "model": "/models/drafter", "num_speculative_tokens": 7,
                "num_speculative_tokens_per_batch_size": [[1, 7, 7], [8, 16, 0]],
            },
        ),
    ],
)  # fmt: skip
def test_speculation(change: dict[str, object], expected: dict[str, object]) -> None:
    command = VLLM.command(replace(CUDA, **change))  # type: ignore[arg-type]
    config = json.loads(argument(command.argv, "--speculative-config"))
    assert config == expected
    assert ("VLLM_USE_V2_MODEL_RUNNER" in command.env) == ("schedule" in change)


def test_gfx1151() -> None:
    command = VLLM.command(replace(ROCM, mla=True, method=Method.MTP, draft_tokens=1))
    assert command.argv[:3] == ("vllm", "serve", "/models/target")
    assert argument(command.argv, "--attention-backend") == "TRITON_MLA"
    assert "--enforce-eager" in command.argv
    assert argument(VLLM.command(replace(ROCM, **DFLASH)).argv, "--attention-backend") == "ROCM_ATTN"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kv", "backend", "legal"),
    [
        (KvType.BF16, None, True),
        (KvType.BF16, "FLASH_ATTN", True),
        (KvType.BF16, "TRITON_ATTN", True),
        (KvType.FP8, None, True),  # FLASHINFER is taken
        (KvType.FP8, "FLASHINFER", True),
        (KvType.FP8, "FLASH_ATTN", False),
        (KvType.FP8, "TRITON_ATTN", False),
        (KvType.INT8, None, True),  # TRITON_ATTN is taken
        (KvType.INT8, "FLASH_ATTN", False),
        (KvType.INT8, "FLASHINFER", False),
        (KvType.Q8_0, None, False),
    ],
)
def test_attention_on_ampere(kv: KvType, backend: str | None, legal: bool) -> None:
    request = replace(CUDA, kv=kv, attention_backend=backend)
    reason = VLLM.refuses(request)
    assert (reason is None) == legal
    if reason is None:
        VLLM.command(request)
    elif kv is KvType.FP8:
        assert "bfloat16 with FLASH_ATTN" in reason.text
        assert "fp8 with FLASHINFER" in reason.text
        assert reason.source is not None


def test_attention_elsewhere() -> None:
    hopper = replace(CUDA, arch="sm_90", kv=KvType.FP8, attention_backend="FLASH_ATTN")
    assert VLLM.refuses(hopper) is None
    assert "--attention-backend" not in VLLM.command(replace(CUDA, arch="sm_120")).argv
    for arch, backend in (("sm_86", "ROCM_ATTN"), ("sm_75", "FLASH_ATTN"), ("sm_86", "CPU_ATTN"), ("sm_86", "NO_SUCH")):
        wrong = VLLM.refuses(replace(CUDA, arch=arch, attention_backend=backend))
        assert wrong is not None
        assert wrong.code == "attention_backend"
    on_rocm = VLLM.refuses(replace(ROCM, attention_backend="FLASH_ATTN"))
    assert on_rocm is not None
    assert "ROCM_ATTN" in on_rocm.text
    unified = VLLM.refuses(replace(ROCM, **DFLASH, attention_backend="ROCM_AITER_UNIFIED_ATTN"))  # type: ignore[arg-type]
    assert unified is not None
    assert "non-causal" in unified.text


def test_other_refusals() -> None:
    for change, code in (
        ({**DFLASH, "drafter": None}, "no_drafter"),
        ({"method": Method.MTP, "draft_tokens": 0}, "no_draft_tokens"),
        ({**DFLASH, "batch": 8}, "batch_too_small"),
    ):
        reason = VLLM.refuses(replace(CUDA, **change))  # type: ignore[arg-type]
        assert reason is not None
        assert reason.code == code


METRICS = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="big"} 3.0
vllm:num_requests_running{engine="1",model_name="big"} 1.0
vllm:num_requests_waiting{engine="0",model_name="big"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 2.0
vllm:generation_tokens_total{engine="0",model_name="big"} 1024.0
vllm:prompt_tokens_total{engine="0",model_name="big"} 2.5e+03
vllm:spec_decode_num_drafts_total{engine="0",model_name="big"} 16.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="big"} 112.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="big"} 96.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 16.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="big"} 1.7e+09
"""


def test_metrics_are_summed_over_engines() -> None:
    seen = VLLM.parse_metrics(METRICS)
    assert (seen.running, seen.waiting, seen.generated, seen.prompt) == (4, 2, 1024, 2500)
    assert (seen.drafted, seen.accepted, seen.drafts) == (112, 96, 16)
    assert VLLM.parse_metrics("").running is None


def test_health_and_priors() -> None:
    assert 503 not in VLLM.loading_statuses  # here it means dead
    assert VLLM.load_prior_s(20 * 10**9, Backend.ROCM, "gfx1151") > 540
    assert VLLM.load_prior_s(20 * 10**9, Backend.CUDA, "sm_86") < 300
    assert 25 < VLLM.load_prior_s(10**6, Backend.CPU, None) < 120
