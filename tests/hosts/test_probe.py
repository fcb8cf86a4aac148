"""The whole probe: both vendors, none, and its form as JSON."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from hosts import drm
from hosts.facts import FactsError, HostFacts
from hosts.probe import probe
from tests.hosts.conftest import Environ
from tests.hosts.test_cdi import YAML
from tests.hosts.trees import Tree, strix_halo, write
from tests.waiting import until_sync


def test_no_gpu_at_all_says_why_for_each_vendor(tree: Tree, environ: Environ) -> None:
    facts = probe(tree.machine().roots, environ=environ())
    assert facts.accelerators == ()
    assert [(problem.code, problem.vendor) for problem in facts.problems] == [
        ("no_device", "nvidia"),
        ("no_device", "amd"),
    ]
    assert facts.problems[0].detail == "no NVIDIA device on the PCI bus and no libnvidia-ml.so.1"
    assert "no AMD device on the PCI bus" in facts.problems[1].detail
    assert all(problem.hint for problem in facts.problems)


def test_without_a_sign_no_child_is_started(tree: Tree, environ: Environ, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr("subprocess.Popen", refuse)
    assert probe(tree.machine().roots, environ=environ()).accelerators == ()


def test_both_vendors_in_one_machine(tree: Tree, nvml: Path, amdsmi: Path, environ: Environ) -> None:
    strix_halo(tree)
    write(tree.base / "etc/cdi/nvidia.yaml", YAML)
    facts = probe(tree.roots, environ=environ(nvml, amdsmi))
    assert [(gpu.vendor, gpu.index, gpu.pci) for gpu in facts.accelerators] == [
        ("nvidia", 0, "0000:01:00.0"),
        ("amd", 0, "0000:c6:00.0"),
    ]
    assert facts.problems == ()


def test_facts_survive_json(tree: Tree, nvml: Path, amdsmi: Path, environ: Environ) -> None:
    facts = probe(strix_halo(tree).roots, environ=environ(nvml, amdsmi))
    data = json.loads(json.dumps(facts.to_dict()))
    assert data["schema"] == 1
    assert HostFacts.from_dict(data) == facts
    assert json.loads(json.dumps(HostFacts.from_dict(data).to_dict())) == data


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"host": 7}, "host"),
        ({"cpu": None}, "cpu"),
        ({"memory": {"total": 1}}, "available"),
        ({"accelerators": [{"vendor": "nvidia"}]}, "accelerators"),
        ({"problems": [{"what": 1}]}, "what"),
    ],
)
def test_facts_that_do_not_say_what_they_must(tree: Tree, environ: Environ, change: object, says: str) -> None:
    assert isinstance(change, dict)
    data = probe(tree.machine().roots, environ=environ()).to_dict()
    with pytest.raises(FactsError, match=says):
        HostFacts.from_dict({**data, **change})


def test_an_amd_gpu_without_its_driver(tree: Tree, environ: Environ) -> None:
    tree.machine().pci("0000:c6:00.0", 0x1002, 0x1586, kind=0x038000)
    facts = probe(tree.roots, environ=environ())
    assert facts.accelerators == ()
    problem = next(problem for problem in facts.problems if problem.code == "driver_not_loaded")
    assert "0000:c6:00.0 (without a driver)" in problem.detail


def test_both_libraries_hanging_cost_the_deadline_once(tree: Tree, nvml: Path, amdsmi: Path, environ: Environ) -> None:
    begin = time.monotonic()
    hanging = environ(nvml, amdsmi, FAKE_NVML_HANG="Init", FAKE_AMD_HANG=1)
    facts = probe(strix_halo(tree).roots, deadline=0.8, environ=hanging)
    assert time.monotonic() - begin < 3.0
    assert [problem.code for problem in facts.problems] == ["nvml_timeout", "amd_smi_timeout"]
    assert [gpu.vendor for gpu in facts.accelerators] == ["amd"]


def test_sensors_that_hang_are_left_out(tree: Tree, environ: Environ, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wedged firmware: a read of a sensor never returns, the driver's counters do."""
    release = threading.Event()

    def hang(_device: Path) -> drm.DrmSensors:
        release.wait(30)
        return drm.DrmSensors()

    monkeypatch.setattr(drm, "read_sensors", hang)
    try:
        facts = probe(strix_halo(tree).roots, deadline=1.0, environ=environ())
    finally:
        release.set()
    (gpu,) = facts.accelerators
    assert (gpu.memory_total, gpu.temperature_c) == (120259084288, None)
    assert "amd_sysfs_timeout" in [problem.code for problem in facts.problems]
    until_sync(lambda: not any(t.name.startswith("outrider-amd-sysfs") for t in threading.enumerate()), 5.0)


def test_this_machine_can_be_probed() -> None:
    facts = probe()
    assert facts.host
    assert facts.memory.total > 0
    assert {gpu.vendor for gpu in facts.accelerators} | {problem.vendor for problem in facts.problems} >= {
        "nvidia",
        "amd",
    }
