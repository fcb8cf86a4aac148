"""NVIDIA GPUs through the real pynvml, over a fake library in a real child process."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hosts import nvidia, pci
from hosts.facts import Accelerator, HostFacts
from hosts.probe import probe
from tests.hosts.conftest import Environ
from tests.hosts.test_cdi import UUID, YAML
from tests.hosts.trees import GIB, Tree, write
from tests.waiting import until_sync


def codes(facts: HostFacts) -> list[str]:
    return [problem.code for problem in facts.problems if problem.vendor == "nvidia"]


def only(facts: HostFacts) -> Accelerator:
    (gpu,) = facts.accelerators
    return gpu


@pytest.fixture
def machine(tree: Tree) -> Tree:
    """A host with one RTX 3090 and a CDI specification."""
    tree.machine(host="dankserver", cpu="AMD Ryzen 9 5950X 16-Core Processor")
    tree.pci("0000:01:00.0", pci.NVIDIA, 0x2204, driver="nvidia")
    write(tree.base / "etc/cdi/nvidia.yaml", YAML)
    return tree


PROCESS = {"pid": 4242, "memory": 9437184, "kind": "compute", "name": None, "container": None, "desktop": False}


def test_an_rtx_3090(machine: Tree, nvml: Path, environ: Environ) -> None:
    facts = probe(machine.roots, environ=environ(nvml))
    gpu = only(facts)
    assert codes(facts) == []
    assert (gpu.vendor, gpu.name, gpu.arch) == ("nvidia", "NVIDIA GeForce RTX 3090", "sm_86")
    assert (gpu.pci, gpu.uuid, gpu.index) == ("0000:01:00.0", UUID, 0)
    assert (gpu.driver, gpu.cuda) == ("580.95.05", "13.0")
    assert (gpu.memory_total, gpu.memory_free, gpu.unified) == (25769803776, 25430065152, False)
    assert (gpu.details["memory_reserved"], gpu.details["memory_used"]) == (338690048, 1048576)
    assert gpu.compute_units == 82
    assert (gpu.utilisation, gpu.temperature_c, gpu.power_w, gpu.power_limit_w) == (37, 54.0, 118.34, 350.0)
    assert gpu.devices == (f"nvidia.com/gpu={UUID}",)
    assert gpu.details["throttled_by"] == ["software_power_cap"]
    assert gpu.details["processes"] == [PROCESS]
    assert gpu.details["health"] == "ok"
    assert "unreadable" not in gpu.details  # that a GeForce has no ECC is nothing to tell
    assert "ecc" not in gpu.details


def test_an_old_driver_lacks_some_calls_and_only_those_fields(machine: Tree, old_nvml: Path, environ: Environ) -> None:
    gpu = only(probe(machine.roots, environ=environ(old_nvml)))
    assert gpu.temperature_c == 53.0  # the old call
    assert (gpu.memory_total, gpu.memory_free) == (25769803776, 25769803776 - 1048576 - 338690048)
    assert "memory_reserved" not in gpu.details  # version 1 counts it as used
    assert gpu.compute_units is None
    assert gpu.details["unreadable"] == ["cores"]
    # the unversioned process calls raise a LibraryMismatchError, which is no NVMLError; version 2 is there
    assert gpu.details["processes"] == [PROCESS]
    assert gpu.details["throttled_by"] == ["software_power_cap"]  # by the call's older name
    assert gpu.name == "NVIDIA GeForce RTX 3090"


def test_version_2_of_memory_may_be_refused(machine: Tree, nvml: Path, environ: Environ) -> None:
    gpu = only(probe(machine.roots, environ=environ(nvml, FAKE_NVML_FAIL="GetMemoryInfo_v2:25")))
    assert gpu.memory_total == 25769803776
    assert not gpu.unified


@pytest.mark.parametrize(
    ("call", "field"),
    [
        ("GetName", "name"),
        ("GetUUID", "uuid"),
        ("GetCudaComputeCapability", "arch"),
        ("GetUtilizationRates", "utilisation"),
        ("GetPowerUsage", "power_w"),
        ("GetEnforcedPowerLimit", "power_limit_w"),
        ("SystemGetDriverVersion", "driver"),
        ("SystemGetCudaDriverVersion", "cuda"),
    ],
)
def test_one_failing_call_costs_one_field(machine: Tree, nvml: Path, environ: Environ, call: str, field: str) -> None:
    gpu = only(probe(machine.roots, environ=environ(nvml, FAKE_NVML_FAIL=f"{call}:3")))
    assert getattr(gpu, field) is None
    assert gpu.memory_total == 25769803776
    assert gpu.details["health"] == "ok"


def test_memory_that_fails_otherwise_is_unknown_and_not_unified(machine: Tree, nvml: Path, environ: Environ) -> None:
    failing = environ(nvml, FAKE_NVML_FAIL="GetMemoryInfo_v2:999,GetMemoryInfo:999")
    gpu = only(probe(machine.roots, environ=failing))
    assert (gpu.memory_total, gpu.memory_free, gpu.unified) == (None, None, False)


@pytest.mark.parametrize(
    "settings", [{"FAKE_NVML_FAIL": "GetMemoryInfo_v2:3,GetMemoryInfo:3"}, {"FAKE_NVML_TOTAL": "0"}]
)
def test_unified_memory_is_the_hosts(machine: Tree, nvml: Path, environ: Environ, settings: dict[str, str]) -> None:
    machine.machine(total_kib=127600748, available_kib=100 * GIB // 1024)
    gpu = only(probe(machine.roots, environ=environ(nvml, FAKE_NVML_CC=121, **settings)))
    assert gpu.unified
    assert gpu.arch == "sm_121"
    assert gpu.memory_total == 127600748 * 1024
    assert gpu.memory_free == 92 * GIB  # what is available less the host's reserve
    assert gpu.details["reserve"] == 8 * GIB


def test_four_gpus_keep_their_order_and_addresses(tree: Tree, nvml: Path, environ: Environ) -> None:
    facts = probe(tree.machine().roots, environ=environ(nvml, FAKE_NVML_COUNT=4))
    assert [(gpu.index, gpu.pci) for gpu in facts.accelerators] == [(i, f"0000:0{i + 1}:00.0") for i in range(4)]
    assert codes(facts) == ["cdi_missing"] * 4
    assert all(gpu.devices == () for gpu in facts.accelerators)


def test_a_specification_without_this_gpu_is_stale(machine: Tree, nvml: Path, environ: Environ) -> None:
    facts = probe(machine.roots, environ=environ(nvml, FAKE_NVML_COUNT=2))
    assert codes(facts) == ["cdi_stale"]
    assert [gpu.devices for gpu in facts.accelerators] == [(f"nvidia.com/gpu={UUID}",), ()]


def test_no_gpu(machine: Tree, nvml: Path, environ: Environ) -> None:
    facts = probe(machine.roots, environ=environ(nvml, FAKE_NVML_COUNT=0))
    assert facts.accelerators == ()
    assert codes(facts) == ["no_device"]


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (4, "no_permission"),
        (9, "driver_not_loaded"),
        (10, "nvml_timeout"),
        (12, "library_missing"),
        (15, "gpu_lost"),
        (17, "nvml_blocked"),
        (18, "driver_mismatch"),
        (999, "nvml_unknown"),
        (12345, "nvml_failed"),
    ],
)
def test_each_error_of_the_start_has_a_code_and_a_hint(
    machine: Tree, nvml: Path, environ: Environ, value: int, code: str
) -> None:
    facts = probe(machine.roots, environ=environ(nvml, FAKE_NVML_INIT=value))
    assert facts.accelerators == ()
    assert codes(facts) == [code]
    (problem,) = [problem for problem in facts.problems if problem.vendor == "nvidia"]
    assert problem.hint


def test_a_gpu_without_its_library(machine: Tree, environ: Environ) -> None:
    facts = probe(machine.roots, environ=environ())
    assert codes(facts) == ["library_missing"]
    assert "0000:01:00.0 (bound to nvidia)" in facts.problems[0].detail


def test_a_gpu_lost_in_the_middle_keeps_what_was_read_and_offers_nothing(
    machine: Tree, nvml: Path, environ: Environ
) -> None:
    facts = probe(machine.roots, environ=environ(nvml, FAKE_NVML_LOST_AFTER=6))
    gpu = only(facts)
    assert codes(facts) == ["gpu_lost"]
    assert (gpu.pci, gpu.name) == ("0000:01:00.0", "NVIDIA GeForce RTX 3090")
    assert gpu.memory_free is None
    assert gpu.details["health"] == "lost"
    assert gpu.temperature_c is None


def test_one_of_two_lost_leaves_the_other(machine: Tree, nvml: Path, environ: Environ) -> None:
    lost = environ(nvml, FAKE_NVML_COUNT=2, FAKE_NVML_FAIL="GetHandleByIndex1:15")
    facts = probe(machine.roots, environ=lost)
    assert [gpu.pci for gpu in facts.accelerators] == ["0000:01:00.0"]
    assert codes(facts) == ["gpu_lost"]


def test_without_a_bus_address_the_kernel_is_asked_then_a_name_is_made(
    machine: Tree, nvml: Path, environ: Environ
) -> None:
    failing = environ(nvml, FAKE_NVML_FAIL="GetPciInfo:3")
    assert only(probe(machine.roots, environ=failing)).pci == "0000:01:00.0"
    bare = Tree(machine.base / "bare").machine()
    facts = probe(bare.roots, environ=failing)
    assert only(facts).pci == "nvidia-0"
    assert codes(facts) == ["pci_unknown", "cdi_missing"]


@pytest.mark.parametrize("call", ["Init", "GetMemoryInfo_v2"])
def test_a_hanging_library_is_killed(machine: Tree, nvml: Path, environ: Environ, call: str) -> None:
    begin = time.monotonic()
    facts = probe(machine.roots, deadline=0.6, environ=environ(nvml, FAKE_NVML_HANG=call))
    assert time.monotonic() - begin < 3.0
    assert codes(facts) == ["nvml_timeout"]
    assert facts.cpu.threads == 32


def test_a_crashing_library_costs_only_the_child(machine: Tree, nvml: Path, environ: Environ) -> None:
    facts = probe(machine.roots, environ=environ(nvml, FAKE_NVML_CRASH="GetName"))
    assert codes(facts) == ["nvml_crashed"]
    assert "SIGABRT" in facts.problems[0].detail


def test_noise_of_the_library_is_not_the_answer(machine: Tree, nvml: Path, environ: Environ) -> None:
    assert only(probe(machine.roots, environ=environ(nvml, FAKE_NVML_NOISE=1))).arch == "sm_86"


def test_a_library_where_the_loader_does_not_look(machine: Tree, nvml: Path, environ: Environ) -> None:
    """WSL2 and NixOS: the path is known to us, not to the loader."""
    (machine.base / "lib").symlink_to(nvml)
    sign = nvidia.look(machine.roots, (), environ())
    assert sign.library == str(machine.base / "lib/libnvidia-ml.so.1")
    assert only(probe(machine.roots, environ=environ())).driver == "580.95.05"


def test_a_file_that_is_no_library(machine: Tree, environ: Environ) -> None:
    write(machine.base / "lib/libnvidia-ml.so.1", "not an ELF file")
    assert codes(probe(machine.roots, environ=environ())) == ["library_missing"]


def test_the_driver_alone_is_a_sign(tree: Tree, environ: Environ) -> None:
    assert not nvidia.look(tree.roots, (), environ())
    (tree.base / "proc/driver/nvidia").mkdir(parents=True)
    assert nvidia.look(tree.roots, (), environ())


def test_a_child_that_nobody_collects_is_ended_by_the_kernel(nvml: Path, environ: Environ) -> None:
    sign = nvidia.Sign((), driver=False, library=None)
    child = nvidia.start(sign, environ(nvml, FAKE_NVML_HANG="Init"), 0.3)
    try:
        until_sync(lambda: not child.running, 10.0, "the child's end")
    finally:
        child.close()


def test_a_child_ends_when_its_parents_pipe_closes(nvml: Path, environ: Environ) -> None:
    sign = nvidia.Sign((), driver=False, library=None)
    child = nvidia.start(sign, environ(nvml), 30.0, serve=True)
    try:
        assert child.ask("memory", time.monotonic() + 10.0)["gpus"][0]["memory"]["free"] == 25430065152
        assert child._process.stdin is not None
        child._process.stdin.close()
        until_sync(lambda: not child.running, 10.0, "the child's end")
    finally:
        child.close()
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)
