"""Free memory, read again and again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from hosts.facts import HostFacts
from hosts.probe import probe
from hosts.telemetry import Telemetry
from tests.hosts.conftest import Environ
from tests.hosts.trees import GIB, Tree, strix_halo, write

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
