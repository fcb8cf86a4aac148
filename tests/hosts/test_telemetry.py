"""Free memory, read again and again."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from hosts.cgroups import ContainerSample
from hosts.facts import HostFacts
from hosts.host_sample import HostSample
from hosts.probe import probe
from hosts.telemetry import Telemetry
from tests.hosts.conftest import Environ
from tests.hosts.trees import GIB, Tree, fdinfo, strix_halo, write
from tests.waiting import until_sync

FREE = 25430065152


@pytest.fixture
def lost(tmp_path: Path) -> Path:
    """While this file exists the GPU is lost."""
    return tmp_path / "lost"


@pytest.fixture
def running(tree: Tree, nvml: Path, environ: Environ, lost: Path) -> Iterator[Telemetry]:
    telemetry = Telemetry(strix_halo(tree).roots, environ(nvml, FAKE_NVML_LOST_FILE=lost))
    yield telemetry
    telemetry.close()


def free(facts: HostFacts, tree: Tree, environ: Mapping[str, str]) -> Mapping[str, int]:
    """One reading with a child of its own."""
    telemetry = Telemetry(tree.roots, environ)
    try:
        return telemetry.sample(facts).free
    finally:
        telemetry.close()


def test_one_reading(tree: Tree, nvml: Path, environ: Environ) -> None:
    facts = probe(strix_halo(tree).roots, environ=environ(nvml))
    assert free(facts, tree, environ(nvml)) == {
        "host": facts.memory.available,
        "0000:01:00.0": FREE,
        "0000:c6:00.0": facts.accelerators[1].memory_free,
    }


def test_one_child_serves_all_readings(tree: Tree, nvml: Path, environ: Environ, running: Telemetry) -> None:
    facts = probe(tree.roots, environ=environ(nvml))
    first = running.sample(facts)
    child = running._serving.child
    assert child is not None
    write(tree.base / "proc/meminfo", f"MemTotal: {120 * GIB // 1024} kB\nMemAvailable: {50 * GIB // 1024} kB\n")
    write(tree.base / "sys/class/drm/card1/device/mem_info_gtt_used", f"{20 * GIB}\n")
    second = running.sample(facts)
    assert running._serving.child is child
    assert first.free["0000:01:00.0"] == second.free["0000:01:00.0"] == FREE
    assert second.free["host"] == 50 * GIB
    assert second.free["0000:c6:00.0"] == 42 * GIB
    running.close()
    assert not child.running


def test_a_lost_gpu_is_a_problem_and_the_child_is_replaced(
    tree: Tree, nvml: Path, environ: Environ, running: Telemetry, lost: Path
) -> None:
    facts = probe(tree.roots, environ=environ(nvml))
    running.sample(facts)
    before = running._serving.child
    lost.touch()
    sample = running.sample(facts)
    assert [problem.code for problem in sample.problems] == ["gpu_lost"]
    assert "0000:01:00.0" not in sample.free
    assert "0000:c6:00.0" in sample.free
    assert before is not None
    assert not before.running
    lost.unlink()
    assert running.sample(facts).free["0000:01:00.0"] == FREE


def test_a_hanging_library_costs_the_deadline_and_only_its_own_numbers(
    tree: Tree, nvml: Path, environ: Environ
) -> None:
    facts = probe(strix_halo(tree).roots, environ=environ(nvml))
    telemetry = Telemetry(tree.roots, environ(nvml, FAKE_NVML_HANG="GetMemoryInfo_v2"))
    try:
        sample = telemetry.sample(facts, deadline=0.5)
    finally:
        telemetry.close()
    assert [problem.code for problem in sample.problems] == ["nvml_timeout"]
    assert set(sample.free) == {"host", "0000:c6:00.0"}


def test_unified_memory_follows_the_host(tree: Tree, nvml: Path, environ: Environ) -> None:
    tree.machine(total_kib=128 * GIB // 1024, available_kib=60 * GIB // 1024)
    unified = environ(nvml, FAKE_NVML_TOTAL=0)
    facts = probe(tree.roots, environ=unified)
    assert free(facts, tree, unified) == {"host": 60 * GIB, "0000:01:00.0": 52 * GIB}


def test_without_gpus_no_child_is_started(tree: Tree, environ: Environ) -> None:
    facts = probe(tree.machine().roots, environ=environ())
    telemetry = Telemetry(tree.roots, environ())
    assert set(telemetry.sample(facts).free) == {"host"}
    assert telemetry._serving.child is None
    telemetry.close()


def test_who_is_on_each_gpu_and_in_which_container(
    tree: Tree, nvml: Path, environ: Environ, running: Telemetry
) -> None:
    strange, mine = "a" * 64, "b" * 64
    facts = probe(tree.roots, environ=environ(nvml))
    tree.process(4242, "vllm", cgroup=f"0::/machine.slice/libpod-{mine}.scope/container\n")  # the library's process
    tree.process(77, "ollama", cgroup=f"0::/system.slice/docker-{strange}.scope\n")
    write(tree.base / "sys/class/kfd/kfd/proc/77/vram_64506", f"{9 * GIB}\n")
    write(tree.base / "sys/class/kfd/kfd/proc/78/vram_64506", f"{GIB}\n")  # gone meanwhile
    tree.process(10, "gnome-shell", drm={"7": fdinfo(1, vram_kib=100 * 1024)})
    tree.process(11, "game", drm={"7": fdinfo(2, vram_kib=50 * 1024)})
    write(tree.base / f"sys/fs/cgroup/machine.slice/libpod-{mine}.scope/memory.current", f"{2 * GIB}\n")
    write(tree.base / "sys/fs/cgroup/memory.stat", "anon 1\n")
    sample = running.sample(facts, containers={mine: 4242, strange: 4242, "c" * 64: 5})
    assert [(u.pci[5:7], u.pid, u.name, u.memory, u.kind, u.container, u.desktop) for u in sample.users] == [
        ("c6", 77, "ollama", 9 * GIB, "compute", strange, False),
        ("c6", 78, None, GIB, "compute", None, False),
        ("c6", 10, "gnome-shell", 100 * 1024**2, "graphics", None, True),
        ("c6", 11, "game", 50 * 1024**2, "graphics", None, False),
        ("01", 4242, "vllm", 9437184, "compute", mine, False),
    ]
    assert sample.containers == {mine: ContainerSample(2 * GIB, None)}
    assert sample.free["0000:c6:00.0"] <= 120259084288 - 10 * GIB  # what strangers hold is not free


def test_the_machine_itself(tree: Tree, environ: Environ) -> None:
    facts = probe(tree.machine(total_kib=64 * GIB // 1024, available_kib=5 * GIB // 1024).roots, environ=environ())
    write(
        tree.base / "proc/pressure/memory",
        "some avg10=12.50 avg60=1.00 avg300=0.10 total=99\nfull avg10=3.25 avg60=0.00 avg300=0.00 total=9\n",
    )
    write(tree.base / "proc/pressure/cpu", "some avg10=101.00 avg60=1.00 avg300=0.10 total=99\n")
    telemetry = Telemetry(tree.roots, environ())
    host = telemetry.sample(facts).host
    telemetry.close()
    assert host == HostSample(64 * GIB, 5 * GIB, memory_some=12.5, memory_full=3.25)


def test_a_reading_that_still_goes_on_is_not_waited_for(tree: Tree, nvml: Path, environ: Environ) -> None:
    facts = probe(strix_halo(tree).roots, environ=environ(nvml))
    telemetry = Telemetry(tree.roots, environ(nvml, FAKE_NVML_HANG="GetMemoryInfo_v2"))
    first = threading.Thread(target=telemetry.sample, args=(facts, 1.5))
    first.start()
    until_sync(lambda: telemetry._serving.child is not None, 5.0)
    begin = time.monotonic()
    sample = telemetry.sample(facts, 0.1)
    assert time.monotonic() - begin < 1.0
    assert [problem.code for problem in sample.problems] == ["telemetry_busy"]
    first.join()
    telemetry.close()


def test_facts_name_who_is_on_the_gpu(tree: Tree, environ: Environ) -> None:
    tree.process(10, "Xorg", drm={"7": fdinfo(1, vram_kib=100 * 1024)})
    gpu = probe(strix_halo(tree).roots, environ=environ()).accelerators[0]
    assert gpu.details["processes"] == [
        {"pid": 10, "name": "Xorg", "memory": 100 * 1024**2, "kind": "graphics", "container": None, "desktop": True}
    ]
