"""Every failure has a class with a policy, and an end says what it was."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import orchestrator
from containers.memory_kills import MemoryKills
from orchestrator import device_policy
from orchestrator.errors import EngineFailed
from orchestrator.faults import FAULTS, POLICIES, Ended, Fault, fault_of, judge, policy_of
from orchestrator.faults.classes import Gives
from orchestrator.models import Runtime
from orchestrator.runtimes import ADAPTERS

SOURCES = list(Path(orchestrator.__file__).parent.rglob("*.py"))
LLAMA = ADAPTERS[Runtime.LLAMA_CPP].failures


def raised() -> set[str]:
    """The literal codes of every `EngineFailed` in the sources."""
    found = set()
    for file in SOURCES:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "EngineFailed" and node.args:
                code = node.args[0]
                if isinstance(code, ast.Constant):
                    found.add(str(code.value))
    return found


def test_every_class_has_a_policy() -> None:
    assert set(POLICIES) == set(Fault)
    for fault, policy in POLICIES.items():
        assert policy.text, fault
        assert not policy.helps or policy.blames, "a lower rung helps only against what the launch is to blame for"


def test_every_code_that_an_engine_can_fail_with_has_a_class() -> None:
    codes = raised()
    assert {"load_timed_out", "speculation_off", "wedged", "chat_failed", "engine_exited"} <= codes
    for adapter in ADAPTERS.values():
        codes |= {signature.code for signature in adapter.failures}
    assert sorted(codes - set(FAULTS)) == []


def test_what_others_are_promised() -> None:
    """The codes that the watch over health, the canaries and the stop ladder fail engines with."""
    assert policy_of("engine_stalled").blames
    assert policy_of("engine_unresponsive").blames
    canary = policy_of("canary_failed")
    assert (canary.limit, canary.helps) == (2, frozenset({Gives.METHOD, Gives.RUNTIME}))
    assert not policy_of("network_path_broken").blames
    assert not policy_of("gpu_lost").blames
    assert not policy_of("memory_guard").blames


@pytest.mark.parametrize(
    ("code", "log", "expected"),
    [
        (0, "INFO: Application shutdown complete.", ("engine_exited", True)),
        (1, "", ("engine_exited", True)),
        (None, "", ("engine_exited", True)),
        (137, "", ("engine_killed", True)),
        (134, "", ("engine_aborted", True)),
        (139, "", ("engine_crashed", True)),
        (135, "", ("engine_crashed", True)),
        (143, "", ("engine_killed", True)),
        (132, "", ("cpu_unsupported", False)),
        (139, "get_sub_batch: failed to add token (error -2)", ("drafter_overrun", True)),
        (1, "error: invalid argument: --draft-max", ("bad_flag", False)),
        (1, "ggml_backend_cuda: cudaMalloc failed: out of memory", ("out_of_memory", False)),
        (137, "terminate called after throwing an instance of 'std::bad_alloc'", ("out_of_memory", False)),
        (1, "gguf_init_from_file: invalid magic", ("model_unreadable", False)),
    ],
)
def test_what_an_end_means(code: int | None, log: str, expected: tuple[str, bool]) -> None:
    error = judge(Ended("m-1", "m", code, tuple(log.splitlines())), LLAMA)
    assert (error.code, error.retryable) == expected
    assert error.hint
    assert error.evidence["exit_code"] == code
    assert log in error.detail or expected[0] != "engine_exited"


LIMITED, FREE = 40 << 20, None


@pytest.mark.parametrize(
    ("code", "limit", "kills", "expected", "words"),
    [
        (137, LIMITED, MemoryKills(1, True, "memory.events"), "cgroup_out_of_memory", "its memory limit of 40 MiB"),
        (137, FREE, MemoryKills(1, False, "memory.events"), "host_out_of_memory", "memory ran out on this machine"),
        (137, LIMITED, MemoryKills(1, False, "memory.events"), "host_out_of_memory", "memory ran out on this machine"),
        (
            1,
            LIMITED,
            MemoryKills(2, True, "podman"),
            "cgroup_out_of_memory",
            "a process of m-1 was killed by the kernel",
        ),
        (None, FREE, MemoryKills(1, False, "podman"), "host_out_of_memory", "a process of m-1 was killed"),
        (137, LIMITED, MemoryKills(0, True, "memory.events"), "engine_killed", "and not for want of memory"),
        (137, FREE, MemoryKills(0, False, "memory.events"), "engine_killed", "and not for want of memory"),
        (137, LIMITED, None, "engine_killed", "m-1 was killed (SIGKILL)"),
        (137, FREE, None, "engine_killed", "m-1 was killed (SIGKILL)"),
        (1, LIMITED, MemoryKills(0, False, "memory.events"), "engine_exited", "ended with exit code 1"),
    ],
)
def test_out_of_memory_is_what_the_kernel_counted_and_never_a_guess(
    code: int | None, limit: int | None, kills: MemoryKills | None, expected: str, words: str
) -> None:
    error = judge(Ended("m-1", "m", code, ("loading",), limit, kills), LLAMA)
    assert error.code == expected
    assert words in error.detail
    assert error.hint
    if kills is not None and kills.count:
        assert (error.evidence["kernel_kills"], error.evidence["known_by"]) == (kills.count, kills.source)
    if kills is None and limit is not None:
        assert "perhaps too little" in (error.hint or ""), "what is not known is said to be so"


def test_a_log_that_names_the_cause_keeps_its_word_and_one_that_tells_of_a_dead_part_does_not() -> None:
    killed = MemoryKills(1, True, "memory.events")
    log = ("get_sub_batch: failed to add token (error -2)",)
    assert judge(Ended("m-1", "m", 139, log, LIMITED, killed), LLAMA).code == "drafter_overrun"
    vllm = ADAPTERS[Runtime.VLLM].failures
    log = ("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",)
    assert judge(Ended("m-1", "m", 1, log, LIMITED), vllm).code == "engine_died"
    assert judge(Ended("m-1", "m", 1, log, LIMITED, killed), vllm).code == "cgroup_out_of_memory"


def test_exit_status_0_is_said_to_be_none_of_an_engines_ends() -> None:
    error = judge(Ended("m-1", "m", 0, ("bye",)), ())
    assert "exit code 0, which an engine never does by itself: bye" in error.detail
    assert fault_of(error.code) is Fault.CRASH


@pytest.mark.parametrize(
    ("report", "code"),
    [
        ({"kind": "xid", "xid": 31, "gpu": "0000:01:00.0", "text": "NVRM: Xid 31"}, "gpu_fault"),
        ({"kind": "amdgpu_timeout", "gpu": "0000:c5:00.0", "text": "ring gfx_0.0.0 timeout"}, "gpu_reset"),
        ({"kind": "amdgpu_fault", "gpu": "0000:c5:00.0", "text": "page fault"}, "gpu_fault"),
        ({"kind": "oom_kill", "text": "Out of memory: Killed process 4711 (llama-server)"}, "host_out_of_memory"),
        ({"kind": "oom_kill", "text": "Memory cgroup out of memory: Killed process 4711"}, "cgroup_out_of_memory"),
    ],
)
def test_what_the_gpu_or_the_kernel_reported_names_a_mute_death(report: dict[str, object], code: str) -> None:
    mute = EngineFailed("engine_killed", "m-1 was killed (SIGKILL)")
    told = device_policy.blamed(mute, [{**report, "at": 100.0}], 101.0)
    assert told.code == code
    assert fault_of(code) in (Fault.DEVICE, Fault.HOST_MEMORY, Fault.CGROUP_MEMORY)
    if report["kind"] == "oom_kill":
        counted = EngineFailed("host_out_of_memory", "the group's counters say so")
        both = device_policy.blamed(counted, [{**report, "at": 100.0}], 101.0)
        assert (both.code, both.detail) == ("host_out_of_memory", "the group's counters say so")
        assert both.evidence["kernel_reported"] == report["text"]
    named = EngineFailed("drafter_overrun", "the log names it")
    assert device_policy.blamed(named, [{**report, "at": 100.0}], 101.0).code == "drafter_overrun"


def test_codes_are_words() -> None:
    assert all(re.fullmatch(r"[a-z][a-z0-9_]+", code) for code in FAULTS)
