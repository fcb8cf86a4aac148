"""SGLang's adapter: argv, arithmetic of blocks, the key out of sight, refusals, metrics, failure signatures."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.kinds import Backend, KvType
from orchestrator.models import Runtime
from orchestrator.plan import Method
from orchestrator.runtimes import LaunchRequest, adapter, diagnose, flags_of
from orchestrator.runtimes.sglang_boot import BOOT
from orchestrator.settings import Settings

SGLANG = adapter(Runtime.SGLANG)
CUDA = LaunchRequest(
    model="/models/target",
    names=("big", "org/Big"),
    context=8192,
    parallel=4,
    backend=Backend.CUDA,
    arch="sm_90",
    kv=KvType.BF16,
    version="0.5.23",
)
DFLASH = replace(CUDA, method=Method.DFLASH, drafter="/models/drafter", draft_tokens=7)
OLD = replace(CUDA, version="0.5.12")
UNKNOWN = replace(CUDA, version=None)


def said(request: LaunchRequest) -> dict[str, str]:
    """The engine's flags and their values."""
    argv = SGLANG.command(request).argv
    own = argv[argv.index(BOOT) + 1 :]
    return {
        word: "" if number + 1 == len(own) or own[number + 1].startswith("--") else own[number + 1]
        for number, word in enumerate(own)
        if word.startswith("--")
    }


def test_plain() -> None:
    command = SGLANG.command(CUDA)
    flags = said(CUDA)
    assert command.argv[:3] == ("python3", "-c", BOOT)
    assert flags["--model-path"] == "/models/target"
    assert flags["--served-model-name"] == "big"
    assert (flags["--host"], flags["--port"]) == ("0.0.0.0", "{port}")
    assert flags["--context-length"] == "8192"
    assert flags["--max-total-tokens"] == str(4 * 8192)
    assert flags["--max-running-requests"] == "4"
    assert flags["--cuda-graph-max-bs-decode"] == "4"
    assert flags["--kv-cache-dtype"] == "bfloat16"
    assert "--enable-metrics" in flags
    assert not any(flag.startswith("--speculative") for flag in flags)
    assert flags_of(command.argv) <= SGLANG.flags
    assert command.env["HF_HUB_OFFLINE"] == "1"
    assert command.caches == (("sglang", command.env["SGLANG_CACHE_DIR"]),)


def test_an_interpreter_of_the_images_own() -> None:
    assert SGLANG.command(replace(CUDA, prefix=("/opt/venv/bin/python",))).argv[:2] == ("/opt/venv/bin/python", "-c")


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (Method.DFLASH, {"--speculative-algorithm": "DFLASH", "--speculative-dflash-block-size": "8"}),
        (Method.DSPARK, {"--speculative-algorithm": "DSPARK", "--speculative-dspark-block-size": "7"}),
        (Method.NGRAM, {"--speculative-algorithm": "NGRAM", "--speculative-num-draft-tokens": "8"}),
        (
            Method.MTP,
            {
                "--speculative-algorithm": "NEXTN",
                "--speculative-num-steps": "7",
                "--speculative-eagle-topk": "1",
                "--speculative-num-draft-tokens": "8",
            },
        ),
        (Method.EAGLE3, {"--speculative-algorithm": "EAGLE3", "--speculative-num-steps": "7"}),
        (Method.DRAFT, {"--speculative-algorithm": "STANDALONE", "--speculative-num-draft-tokens": "8"}),
    ],
)
def test_seven_drafted_tokens(method: Method, expected: dict[str, str]) -> None:
    flags = said(replace(DFLASH, method=method))
    assert {name: flags[name] for name in expected} == expected
    assert flags["--max-running-requests"] == "4"
    assert flags["--max-total-tokens"] == str(4 * (8192 + 8))
    own_head = method in (Method.MTP, Method.NGRAM)
    assert flags.get("--speculative-draft-model-path") == (None if own_head else "/models/drafter")


def test_what_only_some_versions_know() -> None:
    eager = Settings(eager=True)
    assert said(OLD)["--cuda-graph-max-bs"] == "4"
    assert not {"--cuda-graph-max-bs", "--cuda-graph-max-bs-decode"} & said(UNKNOWN).keys()
    assert "--disable-cuda-graph" in said(replace(UNKNOWN, settings=eager))
    assert said(replace(CUDA, settings=eager))["--cuda-graph-backend-decode"] == "disabled"
    for request in (OLD, UNKNOWN):
        dspark = replace(request, method=Method.DSPARK, drafter="/d", draft_tokens=7)
        refusal = SGLANG.refuses(dspark)
        assert refusal is not None
        assert refusal.code == "version"
        with pytest.raises(ValueError, match="DSpark"):
            SGLANG.command(dspark)


def test_a_hybrid_says_how_many_states() -> None:
    hybrid = replace(CUDA, hybrid=True, state_bits=16)
    assert said(hybrid)["--max-mamba-cache-size"] == "20"
    assert said(hybrid)["--mamba-ssm-dtype"] == "float16"
    without = said(replace(hybrid, prefix_caching=False))
    assert without["--max-mamba-cache-size"] == "4"
    assert "--disable-radix-cache" in without


@pytest.mark.parametrize(
    ("kv", "arch", "expected"),
    [
        (KvType.F16, "sm_86", "bfloat16"),
        (KvType.FP8, "sm_86", "fp8_e5m2"),
        (KvType.FP8, "sm_89", "fp8_e4m3"),
        (KvType.FP8, "sm_120", "fp8_e4m3"),
        (KvType.FP8_E5M2, "sm_90", "fp8_e5m2"),
    ],
)
def test_kv_types(kv: KvType, arch: str, expected: str) -> None:
    assert said(replace(CUDA, kv=kv, arch=arch))["--kv-cache-dtype"] == expected


def test_settings_come_first() -> None:
    flags = said(
        replace(
            DFLASH,
            batch=2048,
            tensor_parallel=2,
            trust_remote_code=True,
            memory_share=0.8,
            settings=Settings(
                kv=KvType.FP8,
                attention_backend="FLASHINFER",
                draft_kv=KvType.BF16,
                draft_attention_backend="FLASH_ATTN",
                batch=4096,
                dtype="float16",
                moe_backend="triton",
                env={"X": "1"},
            ),
        )
    )
    assert flags["--kv-cache-dtype"] == "fp8_e4m3"
    assert flags["--attention-backend"] == "flashinfer"
    assert flags["--speculative-draft-kv-cache-dtype"] == "bfloat16"
    assert flags["--speculative-draft-attention-backend"] == "fa3"
    assert flags["--chunked-prefill-size"] == "4096"
    assert flags["--dtype"] == "float16"
    assert flags["--tp-size"] == "2"
    assert flags["--mem-fraction-static"] == "0.80"
    assert "--trust-remote-code" in flags


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (replace(CUDA, backend=Backend.ROCM, arch="gfx1151"), "backend"),
        (replace(CUDA, backend=Backend.CPU, arch=None), "backend"),
        (replace(DFLASH, drafter=None), "no_drafter"),
        (replace(DFLASH, draft_tokens=0), "no_draft_tokens"),
        (replace(DFLASH, schedule=((1, 4, 7),)), "schedule"),
        (replace(CUDA, kv=KvType.Q8_0), "kv_type"),
        (replace(CUDA, kv=KvType.INT8), "kv_type"),
        (replace(CUDA, attention_backend="ROCM_ATTN"), "attention_backend"),
        (replace(CUDA, attention_backend="FLASH_ATTN", arch="sm_120"), "attention_backend"),
        (replace(CUDA, attention_backend="FLASH_ATTN", arch="sm_86", mla=True), "attention_backend"),
        (replace(CUDA, attention_backend="FLASH_ATTN", kv=KvType.FP8_E5M2), "attention_backend"),
        (replace(DFLASH, version=None, settings=Settings(draft_kv=KvType.FP8)), "version"),
    ],
)
def test_refusals_say_who_taught_them(request_: LaunchRequest, code: str) -> None:
    refusal = SGLANG.refuses(request_)
    assert refusal is not None
    assert refusal.code == code
    assert refusal.source


@pytest.mark.parametrize(
    "request_",
    [
        replace(DFLASH, arch="sm_86"),
        replace(CUDA, attention_backend="FLASH_ATTN", arch="sm_86"),
        replace(OLD, arch="sm_86", eager=True),
        replace(CUDA, arch=None, attention_backend="FLASH_ATTN"),
    ],
)
def test_what_is_not_known_to_fail_is_planned(request_: LaunchRequest) -> None:
    assert SGLANG.refuses(request_) is None


def test_metrics() -> None:
    text = """
sglang:num_running_reqs{engine_type="unified",model_name="big",tp_rank="0"} 3.0
sglang:num_queue_reqs{engine_type="unified",model_name="big",tp_rank="0"} 1.0
sglang:generation_tokens_total{is_streaming="true",model_name="big"} 120.0
sglang:generation_tokens_total{is_streaming="false",model_name="big"} 80.0
sglang:prompt_tokens_total{is_streaming="true",model_name="big"} 900.0
sglang:spec_verify_calls_total{model_name="big"} 50.0
sglang:spec_accept_length{model_name="big"} 3.5
"""
    counters = SGLANG.parse_metrics(text)
    assert (counters.running, counters.waiting, counters.generated, counters.prompt) == (3, 1, 200, 900)
    assert (counters.drafts, counters.drafted, counters.accepted) == (50, None, None)


def test_evidence() -> None:
    assert SGLANG.speculates({"speculative_algorithm": "DFLASH", "internal_states": []}) is True
    assert SGLANG.speculates({"speculative_algorithm": None}) is False
    assert SGLANG.speculates({"version": "0.5.23"}) is None
    assert SGLANG.speculates("nonsense") is None


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "no_kv_memory"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "out_of_memory"),
        ("Exception: Capture cuda graph failed: some reason", "graph_capture"),
        ("AssertionError: FlashAttention v3 Backend requires SM>=80 and SM<=90. ", "attention_backend"),
        ("ValueError: DFLASH speculative decoding requires setting --speculative-draft-model-path.", "bad_speculation"),
        ("ValueError: DSpark speculative_num_draft_tokens must equal gamma + 1 (= 8", "bad_speculation"),
        ("launch_server.py: error: ambiguous option: --cuda-graph-max-bs could match", "bad_flag"),
        ("Model architectures ['XForCausalLM'] are not supported for now.", "model_unsupported"),
        ("Health check failed. Server couldn't get a response from detokenizer for last 20 seconds.", "engine_hung"),
        ("Scheduler hit an exception: Traceback", "engine_died"),
        ("ValueError: Warning: User-specified context_length (9) is greater than the derived context_length (8).",
         "context_too_long"),
    ],
)  # fmt: skip
def test_failures(line: str, code: str) -> None:
    found = diagnose(["noise", line], SGLANG.failures)
    assert found is not None
    assert found.code == code


def test_a_good_start_matches_no_failure() -> None:
    lines = [
        "Max running requests is reset to 48 for speculative decoding. You can override this by explicitly setting",
        "The server is fired up and ready to roll!",
        "Capture cuda graph begin. This can take up to several minutes. avail mem=20.1 GB",
    ]
    assert diagnose(lines, SGLANG.failures) is None


SERVER = """
import logging, multiprocessing, os, sys

def child(queue):
    queue.put(open("/proc/self/cmdline").read())

if __name__ == "__main__":
    logging.basicConfig(format="%(message)s", stream=sys.stdout, force=True, level="INFO")
    logging.info("arguments=%s", sys.argv[1:])
    logging.info(f"server_args={sys.argv[1:]}")
    logging.info("%d tokens", "not a number") if False else logging.info("fine")
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    from sglang.worker import child
    process = context.Process(target=child, args=(queue,))
    process.start()
    seen = queue.get(timeout=30)
    process.join()
    print("KEY" if sys.argv[1] == "--api-key=-secret-" else "NO KEY", sys.argv[2:])
    print("SEEN" if "-secret-" in seen + open("/proc/self/cmdline").read() else "UNSEEN")
"""


def test_the_key_reaches_the_server_and_neither_ps_nor_the_log(tmp_path: Path) -> None:
    package = tmp_path / "sglang"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "launch_server.py").write_text(SERVER)
    (package / "worker.py").write_text("def child(queue):\n    queue.put(open('/proc/self/cmdline').read())\n")
    run = subprocess.run(
        [sys.executable, "-c", BOOT, "--model-path", "/m"],
        env={"SGLANG_API_KEY": "-secret-", "PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "KEY ['--model-path', '/m']" in run.stdout
    assert "UNSEEN" in run.stdout
    assert run.stdout.count("--api-key=***") == 2
    assert "-secret-" not in run.stdout + run.stderr
