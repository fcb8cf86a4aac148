"""NVIDIA machines as others have seen them: every fact that follows from a published capture, through the real pynvml.

What a capture does not show, the fake library does not have: nothing here is made up.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hosts.facts import Accelerator, HostFacts
from hosts.probe import probe
from hosts.telemetry import Telemetry
from tests.hosts.conftest import Environ
from tests.hosts.trees import GIB, KIB, Tree, write

FOLDER = Path(__file__).parent / "fixtures"
NAMES = sorted(path.stem for path in FOLDER.glob("nvidia_*.json"))
MIB = 2**20


def load(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    assert data["source"]
    return data


@pytest.fixture
def playing(tmp_path: Path, nvml: Path, environ: Environ) -> Any:
    def play(data: dict[str, Any], *more: str) -> dict[str, str]:
        lines = [f"{key}={value}" for key, value in data["library"].items()]
        write(tmp_path / "scene", "\n".join([*lines, *more, ""]))
        return environ(nvml, FAKE_NVML_FILE=tmp_path / "scene")

    return play


def check(gpu: Accelerator, data: dict[str, Any]) -> None:
    assert {key: getattr(gpu, key) for key in data["facts"]} == data["facts"]
    assert {key: gpu.details.get(key) for key in data["details"]} == data["details"]
    assert not [key for key in data["absent"] if key in gpu.details]
    if data["free_mib"] is not None:
        assert gpu.memory_free is not None
        assert abs(gpu.memory_free / MIB - data["free_mib"]) <= 1  # the source rounds to MiB


@pytest.mark.parametrize("name", NAMES)
def test_every_fact_of_the_first_gpu(tree: Tree, playing: Any, name: str) -> None:
    data = load(name)
    tree.machine(total_kib=data.get("total_kib", 64 * GIB // KIB), available_kib=40 * GIB // KIB)
    check(probe(tree.roots, environ=playing(data)).accelerators[0], data)


def test_of_four_gpus_one_is_known_whole_and_the_others_are_counted(tree: Tree, playing: Any) -> None:
    facts = probe(tree.machine().roots, environ=playing(load("nvidia_rtx3090_x4")))
    assert [gpu.pci for gpu in facts.accelerators] == ["0000:01:00.0", "nvidia-1", "nvidia-2", "nvidia-3"]
    first, *others = facts.accelerators
    assert (first.index, first.details["minor"]) == (0, 3)  # the device node is not the index
    assert all(
        (gpu.name, gpu.memory_total, gpu.memory_free, gpu.unified) == (None, None, None, False) for gpu in others
    )


def test_an_idle_link_of_generation_1_is_nothing_to_complain_of(tree: Tree, playing: Any) -> None:
    data = load("nvidia_rtx3090_x4")
    facts = probe(tree.machine().roots, environ=playing(data))
    sample = one_sample(tree, facts, playing(data))
    assert (sample.pcie_generation, sample.pcie_width, sample.idle, sample.throttled_by) == (1, 16, True, ())
    assert {problem.code for problem in facts.problems if problem.vendor == "nvidia"} == {"cdi_missing", "pci_unknown"}


def one_sample(tree: Tree, facts: HostFacts, environ: dict[str, str]) -> Any:
    telemetry = Telemetry(tree.roots, environ)
    try:
        return telemetry.sample(facts).gpus[facts.accelerators[0].pci]
    finally:
        telemetry.close()


@pytest.mark.parametrize("memory", ["NotSupported", "0"])
def test_unified_memory_is_what_the_host_has_available(tree: Tree, playing: Any, memory: str) -> None:
    """Both ways in which such a driver says it; per-process memory is told all the same."""
    data = load("nvidia_gb10")
    more = ["TOTAL=0", "FAIL=GetPciInfo:3"] if memory == "0" else []
    tree.machine(total_kib=data["total_kib"], available_kib=100 * GIB // KIB)
    environ = playing(data, *more)
    facts = probe(tree.roots, environ=environ)
    assert facts.accelerators[0].memory_free == 92 * GIB
    tree.machine(total_kib=data["total_kib"], available_kib=20 * GIB // KIB)
    sample = one_sample(tree, facts, environ)
    assert (sample.memory_total, sample.memory_free, sample.memory_used) == (data["total_kib"] * KIB, 12 * GIB, None)
    assert [(process.pid, process.memory) for process in sample.processes] == [(4242, 9437184)]
