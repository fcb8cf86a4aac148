"""amdsmi: the real Python binding over a fake library, in a real child process."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hosts import amd_smi
from hosts.facts import Accelerator, HostFacts, Memory
from hosts.probe import probe
from tests.fakelibs.build import amdsmi_symbols
from tests.hosts.conftest import GONE, Environ
from tests.hosts.trees import GIB, Tree, strix_halo, write

SYSTEM = Memory(128 * GIB, 120 * GIB)


def codes(facts: HostFacts) -> list[str]:
    return [problem.code for problem in facts.problems if problem.vendor == "amd"]


def only(facts: HostFacts) -> Accelerator:
    (gpu,) = facts.accelerators
    return gpu


def test_the_binding_wants_what_the_fake_leaves_out() -> None:
    assert amdsmi_symbols() >= GONE


def test_amdsmi_adds_what_sysfs_lacks_and_changes_no_memory(tree: Tree, amdsmi: Path, environ: Environ) -> None:
    strix_halo(tree)
    write(tree.base / "proc/cpuinfo", "processor\t: 0\nmodel name\t: AMD Eng Sample\n")
    for name in ("power1_input", "name"):
        (tree.base / "sys/class/drm/card1/device/hwmon/hwmon4" / name).unlink()
    without = only(probe(tree.roots, environ=environ()))
    facts = probe(tree.roots, environ=environ(amdsmi))
    gpu = only(facts)
    assert codes(facts) == []
    assert (without.name, without.power_w) == (None, None)
    assert (gpu.name, gpu.power_w) == ("Radeon 8060S Graphics", 57.0)  # not 4294967295
    assert (gpu.memory_total, gpu.memory_free) == (without.memory_total, without.memory_free) != (118111600640, None)
    assert gpu.uuid is None  # every Strix Halo has the same in amdsmi
    assert gpu.power_limit_w is None  # 0 W is no limit
    assert (gpu.utilisation, gpu.temperature_c) == (7, 38.0)  # sysfs's, where amdsmi supports neither


def test_another_gpus_answer_is_not_taken(tree: Tree, amdsmi: Path, environ: Environ) -> None:
    strix_halo(tree)
    (tree.base / "sys/class/drm/card1/device/hwmon/hwmon4/power1_input").unlink()
    gpu = only(probe(tree.roots, environ=environ(amdsmi, FAKE_AMD_BUS=0x03)))
    assert gpu.power_w is None


def test_a_missing_library_is_said_and_costs_nothing_else(tree: Tree, environ: Environ) -> None:
    facts = probe(strix_halo(tree).roots, environ=environ())
    assert codes(facts) == ["amd_smi_missing"]
    assert only(facts).memory_total == 120259084288


def test_a_library_without_a_symbol_the_binding_wants(tree: Tree, new_rocm: Path, environ: Environ) -> None:
    facts = probe(strix_halo(tree).roots, environ=environ(new_rocm))
    assert codes(facts) == ["amd_smi_mismatch"]
    assert only(facts).name == "AMD Radeon 8060S"


@pytest.mark.parametrize(("value", "code"), [(34, "driver_not_loaded"), (10, "no_permission"), (1, "amd_smi_failed")])
def test_errors_of_the_start(tree: Tree, amdsmi: Path, environ: Environ, value: int, code: str) -> None:
    facts = probe(strix_halo(tree).roots, environ=environ(amdsmi, FAKE_AMD_INIT=value))
    assert codes(facts) == [code]
    assert only(facts).arch == "gfx1151"


def test_a_hanging_library_is_killed_and_the_gpu_still_told(tree: Tree, amdsmi: Path, environ: Environ) -> None:
    begin = time.monotonic()
    facts = probe(strix_halo(tree).roots, deadline=0.6, environ=environ(amdsmi, FAKE_AMD_HANG=1))
    assert time.monotonic() - begin < 3.0
    assert codes(facts) == ["amd_smi_timeout"]
    assert only(facts).memory_total == 120259084288


def test_the_hosts_own_module_comes_before_the_one_from_a_package(
    tree: Tree, tmp_path: Path, amdsmi: Path, environ: Environ
) -> None:
    strix_halo(tree)
    write(tree.base / "proc/cpuinfo", "processor\t: 0\n")
    write(tmp_path / "rocm/share/amd_smi/amdsmi/__init__.py", OWN)
    facts = probe(tree.roots, environ={**environ(amdsmi), "ROCM_PATH": str(tmp_path / "rocm")})
    assert only(facts).name == "the host's own"
    assert codes(facts) == []


def test_where_the_hosts_own_module_fails_the_other_is_tried(
    tree: Tree, tmp_path: Path, amdsmi: Path, environ: Environ
) -> None:
    strix_halo(tree)
    write(tree.base / "proc/cpuinfo", "processor\t: 0\n")
    own = tmp_path / "rocm/share/amd_smi/amdsmi"
    write(own / "__init__.py", "from . import amdsmi_exception\nfrom . import gone\n")
    write(own / "amdsmi_exception.py", "")  # imported, and must not be found by the other module
    facts = probe(tree.roots, environ={**environ(amdsmi), "ROCM_PATH": str(tmp_path / "rocm")})
    assert only(facts).name == "Radeon 8060S Graphics"


def test_without_sysfs_amdsmi_alone_describes_the_gpu_by_the_same_rules(
    tree: Tree, amdsmi: Path, environ: Environ
) -> None:
    tree.machine(total_kib=128 * GIB // 1024, available_kib=120 * GIB // 1024)
    facts = probe(tree.roots, environ=environ(amdsmi))
    gpu = only(facts)
    assert codes(facts) == ["kfd_missing"]
    assert (gpu.arch, gpu.pci, gpu.unified, gpu.compute_units) == ("gfx1151", "0000:c6:00.0", True, 40)
    assert (gpu.memory_total, gpu.memory_free) == (118111600640, 118111600640 - 1010827264)
    assert (gpu.uuid, gpu.devices) == (None, ())


def test_readings_in_other_releases_units() -> None:
    gpu = Accelerator(
        vendor="amd",
        name=None,
        arch="gfx1100",
        pci="0000:03:00.0",
        uuid=None,
        memory_total=1,
        memory_free=1,
        unified=False,
    )
    entry = {"bdf": "0000:03:00.0", "power_limit": 327000000, "temperature": 45000, "busy": 250, "power": ["N/A", 0]}
    (merged,) = amd_smi.merge({"gpus": [entry]}, [gpu], SYSTEM).accelerators
    assert (merged.power_limit_w, merged.temperature_c, merged.utilisation, merged.power_w) == (327.0, 45.0, None, None)


def test_an_answer_of_the_wrong_shape_is_survived() -> None:
    for answer in ({}, {"gpus": None}, {"gpus": [7, "x", None]}, {"gpus": [{"power": "x", "bdf": 5, "name": []}]}):
        found = amd_smi.merge(answer, (), SYSTEM)
        assert all(gpu.memory_total is None for gpu in found.accelerators)


OWN = """
class AmdSmiException(Exception):
    pass


class AmdSmiInitFlags:
    INIT_AMD_GPUS = 2


def amdsmi_init(flags):
    print("noise on standard output")


def amdsmi_get_processor_handles():
    return ["gpu"]


def amdsmi_get_gpu_device_bdf(gpu):
    return "0000:c6:00.0"


def amdsmi_get_gpu_asic_info(gpu):
    return {"market_name": "the host's own"}
"""
