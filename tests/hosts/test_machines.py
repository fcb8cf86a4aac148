"""Every fact that is derived from eleven real AMD machines (see `machines.py`)."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from hosts import amd_sysfs, drm, pci
from hosts.amd_sample import AmdSampler
from hosts.facts import Accelerator, HostFacts, Memory
from hosts.host_sample import read_host
from hosts.probe import probe
from hosts.system import read_system
from hosts.versions import read_platform
from tests.hosts.conftest import Environ
from tests.hosts.machines import amd_smi, build, load
from tests.hosts.test_amd_sample import halo_metrics
from tests.hosts.trees import GIB, Tree, fdinfo, sensors, write
from tests.waiting import until_sync

MIB = 1024**2
HALO = "AMD Radeon 8060S"
GROUPS = (992, 993) if os.geteuid() == 0 else (os.getegid(),)
"""Only root gives files to other groups."""


def probed(tree: Tree, environ: Environ, **settings: str) -> HostFacts:
    return probe(tree.roots, environ={**environ(), **settings})


def problems(facts: HostFacts) -> list[str]:
    return [p.code for p in facts.problems if p.vendor == "amd" and p.code != "amd_smi_missing"]


def hints(facts: HostFacts) -> str:
    return "\n".join(p.hint or "" for p in facts.problems if p.vendor == "amd")


EXPECTED: dict[str, dict[str, Any]] = {
    "f2": {
        "name": HALO,
        "pci": "0000:c6:00.0",
        "total": 120259084288,
        "used": 1010827264,
        "free": 122880000 * 1024 - 8 * GIB,  # what is available is less than what the pool has left
        "usable": 120259084288,
        "reserve": 8 * GIB,
        "revision": "0xc1",
        "problems": [],
    },
    "f3": {
        "name": HALO,
        "pci": "0000:c5:00.0",
        "total": 96 * GIB,  # "Total VRAM: 98304 MiB" says llama.cpp there
        "used": 0,
        "free": 96 * GIB,
        "usable": 96 * GIB,
        "reserve": 8 * GIB,
        "revision": "0xc1",
        "problems": [],
    },
    "f4": {
        "name": HALO,
        "pci": "0000:c2:00.0",
        "total": 118111600640,
        "used": 0,
        "free": 118111600640,
        "usable": 118111600640,
        "reserve": 8 * GIB,
        "revision": "0xc1",
        "kfd_pool": 118111600640,
        "problems": [],
    },
    "f5": {
        "name": HALO,
        "pci": "0000:c5:00.0",
        "total": 118111600640,
        "used": 3883843584,  # by process, where the card's counter says 20 MiB
        "free": 118111600640 - 3883843584,
        "usable": 118111600640,
        "reserve": 8 * GIB,
        "revision": "0xc1",
        "problems": [],
    },
    "f6": {
        "name": HALO,
        "pci": "0000:c5:00.0",
        "total": 128 * GIB,
        "used": 0,
        "free": 126877696 * 1024 - 8 * GIB,
        "usable": 130988113 * 1024 - 8 * GIB,  # not what the ceiling says, nor HIP's 62.47 GiB
        "reserve": 8 * GIB,
        "revision": "0xc1",
        "problems": ["gtt_above_memory", "kernel_parameter"],
    },
    "f7": {
        "name": HALO,
        "pci": "0000:c5:00.0",
        "total": 133143986176,  # never the sum
        "used": 314572800,
        "free": 119000000 * 1024 - 8 * GIB,
        "usable": 123207680 * 1024 - 8 * GIB,
        "reserve": 8 * GIB,
        "revision": "0xc1",
        "problems": ["gtt_above_memory", "carve_out_large"],
    },
    "f8": {
        "name": HALO,
        "pci": "0000:c6:00.0",
        "total": 118111600640,
        "used": 0,
        "free": 118111600640,
        "usable": 118111600640,
        "reserve": 8 * GIB,
        "revision": "0xc1",
        "kfd_pool": 118111600640,
        "problems": [],
    },
    "f9": {
        "name": "AMD Radeon 780M Graphics",
        "arch": "gfx1103",
        "compute_units": 12,
        "pci": "0000:c5:00.0",
        "total": 13649 * MIB,  # the 23 MB that are left of the carve-out say nothing
        "used": 964 * MIB,
        "free": (13649 - 964) * MIB,
        "usable": 13649 * MIB,
        "reserve": 27954176 * 1024 // 8,
        "revision": "0xc8",
        "device_id": "0x15bf",
        "problems": ["gtt_limited"],
    },
    "f13": {
        "name": HALO,
        "pci": "0000:c3:00.0",
        "total": 118111600640,
        "used": 0,
        "free": 118111600640,
        "usable": 118111600640,
        "reserve": 8 * GIB,
        "revision": "0xd1",
        "problems": [],
    },
}


@pytest.mark.parametrize("name", EXPECTED)
def test_every_fact_of_a_machine(tree: Tree, environ: Environ, name: str) -> None:
    spec, want = load(name), EXPECTED[name]
    facts = probed(build(tree, name), environ)
    (gpu,) = facts.accelerators
    assert problems(facts) == want["problems"]
    assert facts.memory == Memory(spec["machine"]["total_kib"] * 1024, spec["machine"]["available_kib"] * 1024)
    kernel = spec["machine"].get("kernel", "7.1.0")
    details = {
        "health": "ok",
        "card": spec["drm"].get("card", "card1"),
        "device_id": want.get("device_id", "0x1586"),
        "revision": want["revision"],
        "gpu_id": spec["kfd"]["gpu_id"],
        "kfd_used": sum(spec["kfd"].get("used", {}).values()),
        **({"kfd_pool": want["kfd_pool"]} if "kfd_pool" in want else {}),
        **{f"{k}": spec["drm"][k] for k in ("vram_total", "vram_used", "gtt_total", "gtt_used")},
        "pool": "gtt",
        "memory_used": want["used"],
        "reserve": want["reserve"],
        "usable": want["usable"],
    }
    told = dict(gpu.details)
    told.pop("processes")
    assert told == details
    assert {**asdict(gpu), "details": {}} == {
        "vendor": "amd",
        "name": want["name"],
        "arch": want.get("arch", "gfx1151"),
        "pci": want["pci"],
        "uuid": None,
        "memory_total": want["total"],
        "memory_free": want["free"],
        "unified": True,
        "index": 0,
        "driver": kernel,
        "cuda": None,
        "compute_units": want.get("compute_units", 40),
        "utilisation": None,
        "temperature_c": None,
        "power_w": None,
        "power_limit_w": None,
        "devices": ("/dev/kfd", "/dev/dri/renderD128"),
        "groups": GROUPS,
        "details": {},
    }
    assert facts.platform.ttm_pages_limit == facts.platform.ttm_pages_limit_boot == spec.get("pages_limit")
    assert facts.platform.rocm == spec.get("rocm")


@pytest.mark.parametrize("name", ["f1", *EXPECTED, "f10"])
@pytest.mark.parametrize("available", [0, 9, 40, 200])
def test_budgets_by_what_is_available(tree: Tree, name: str, available: int) -> None:
    """free = min(pool - used, MemAvailable - reserve), for the larger pool alone."""
    spec = load(name)
    total = spec["machine"]["total_kib"] * 1024
    system = Memory(total, min(available * GIB, total))
    (gpu,) = amd_sysfs.read(build(tree, name).roots, system).accelerators
    vram, gtt = spec["drm"]["vram_total"], spec["drm"]["gtt_total"]
    assert gpu.memory_total == max(vram, gtt)
    kept = min(8 * GIB, total // 8)
    held = sum(spec["kfd"].get("used", {}).values())
    if gtt >= vram:
        used = max(spec["drm"]["gtt_used"], held)
        assert gpu.memory_free == max(min(gtt - used, system.available - kept), 0)
        assert gpu.details["usable"] == min(gtt, total - kept)
    else:  # a carve-out is no part of the system's memory
        assert gpu.memory_free == vram - max(spec["drm"]["vram_used"], held)


def test_ceilings_that_are_wrong_are_told_with_the_right_one(tree: Tree, environ: Environ) -> None:
    facts = probed(build(tree, "f6"), environ)
    assert f"ttm.pages_limit={(130988113 * 1024 - 8 * GIB) // 4096}" in hints(facts)
    assert "amdgpu.gttsize=131072 is deprecated" in [p.detail for p in facts.problems if p.code == "kernel_parameter"]


def test_who_computes(tree: Tree, environ: Environ) -> None:
    tree.process(160210, "python3")
    (gpu,) = probed(build(tree, "f5"), environ).accelerators
    assert gpu.details["processes"] == [
        {
            "pid": 160210,
            "name": "python3",
            "memory": 3883843584,
            "kind": "compute",
            "container": None,
            "desktop": False,
        }
    ]


F1_NAME = "Strix Halo [Radeon Graphics / Radeon 8050S Graphics / Radeon 8060S Graphics]"
NOISE = "WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status [1]\n\n"


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("noise", ["", NOISE])
def test_f1_by_its_command_beside_the_kernels_files(
    tree: Tree, tmp_path: Path, environ: Environ, wrapped: bool, noise: str
) -> None:
    folder = amd_smi(tmp_path / "bin", "f1", wrapped=wrapped, noise=noise)
    facts = probed(build(tree, "f1"), environ, PATH=f"{folder}:{os.environ['PATH']}")
    (gpu,) = facts.accelerators
    assert (gpu.name, gpu.arch, gpu.pci, gpu.compute_units) == (F1_NAME, "gfx1151", "0000:c4:00.0", 40)
    assert gpu.uuid is None  # the same on every machine of its kind
    assert gpu.power_limit_w is None  # 0 W
    assert gpu.unified
    assert (gpu.memory_total, gpu.details["pool"], gpu.details["memory_used"]) == (50465865728, "gtt", 104857600)
    assert gpu.memory_free == 50465865728 - 104857600
    assert gpu.details["usable"] == 50465865728
    assert (gpu.details["gpu_id"], gpu.details["vram_total"]) == (42905, 34359738368)
    assert (gpu.details["revision"], gpu.details["vbios"]) == ("0xd1", "113-STRXLGEN-001")
    assert (gpu.devices, gpu.groups) == (("/dev/kfd", "/dev/dri/renderD128"), GROUPS)
    assert gpu.driver == "6.17.1-300.fc43.x86_64"
    assert [p.code for p in facts.problems if p.vendor == "amd"] == [
        "gtt_limited",
        "carve_out_large",
        "kernel_too_old",
    ]


def test_f1_by_its_command_alone(tree: Tree, tmp_path: Path, environ: Environ) -> None:
    """In a sandbox without the kernel's files."""
    tree.machine().pci("0000:c4:00.0", 0x1002, 0x1586, kind=0x038000)
    folder = amd_smi(tmp_path / "bin", "f1")
    facts = probed(tree, environ, PATH=f"{folder}:{os.environ['PATH']}")
    (gpu,) = facts.accelerators
    assert (gpu.name, gpu.arch, gpu.pci, gpu.uuid) == (F1_NAME, "gfx1151", "0000:c4:00.0", None)
    assert (gpu.unified, gpu.compute_units, gpu.power_limit_w) == (True, 40, None)
    assert (gpu.memory_total, gpu.memory_free, gpu.devices) == (32768 * MIB, None, ())
    assert [p.code for p in facts.problems if p.vendor == "amd"] == ["kfd_missing"]


def test_f10_every_fact(tree: Tree, tmp_path: Path, environ: Environ) -> None:
    folder = amd_smi(tmp_path / "bin", "f10", wrapped=True)
    facts = probed(build(tree, "f10"), environ, PATH=f"{folder}:{os.environ['PATH']}")
    (gpu,) = facts.accelerators
    assert (gpu.name, gpu.arch, gpu.pci, gpu.compute_units) == ("Radeon 8050S Graphics", "gfx1151", "0000:c2:00.0", 32)
    assert (gpu.utilisation, gpu.temperature_c, gpu.power_w, gpu.power_limit_w) == (7, 29.0, 14.0, None)
    assert (gpu.memory_total, gpu.memory_free) == (8192 * MIB, (8192 - 3056) * MIB)
    assert (gpu.unified, gpu.details["pool"], gpu.details["memory_used"]) == (True, "vram", 3056 * MIB)
    assert (gpu.details["usable"], gpu.details["reserve"]) == (8192 * MIB, 0)
    assert (gpu.devices, gpu.groups) == (("/dev/kfd", "/dev/dri/renderD128"), GROUPS)
    assert problems(facts) == ["carve_out_large"]


def test_f10_idle_and_at_work(tree: Tree) -> None:
    """600 MHz, 38 C, 15 W, 0 % idle (Bonsai-demo 89); 87 to 91 C and 120 W in training (legacy-rocm-build 6035)."""
    build(tree, "f10")
    device = tree.base / "sys/class/drm/card1/device"
    sampler = AmdSampler(tree.roots)
    for busy, millidegrees, microwatts, clock in (("0", 38000, 15000000, 600), ("100", 91000, 120000000, 2900)):
        write(device / "gpu_busy_percent", f"{busy}\n")
        write(device / "hwmon/hwmon4/temp1_input", f"{millidegrees}\n")
        write(device / "hwmon/hwmon4/power1_input", f"{microwatts}\n")
        write(device / "gpu_metrics", halo_metrics(clock=clock))
        gpus = amd_sysfs.read(tree.roots, Memory(128 * GIB, 100 * GIB)).accelerators
        samples, _ = sampler.sample(gpus, Memory(128 * GIB, 100 * GIB), 5.0, 0.0)
        one = samples["0000:c2:00.0"]
        assert (one.utilisation, one.temperature_c) == (int(busy), millidegrees / 1000)
        assert (one.power_w, one.clock_mhz, one.idle) == (microwatts / 1000000, clock, busy == "0")


def test_f13_names_no_power_cap_and_no_link(tree: Tree) -> None:
    build(tree, "f13")
    (card,) = drm.read_cards(tree.roots)
    assert (card.card, card.revision, card.render_minor, card.product) == ("card1", 209, 128, None)
    for name, text in sensors().items():
        write(card.folder / name, text)
    assert drm.read_sensors(card.folder).power_limit is None


# the command itself, when it fails


@pytest.mark.parametrize(
    "script",
    [
        "exit 1",
        "echo 'Traceback: [not, json'; exit 2",
        'echo "{}"',
        'echo \'[{"gpu": [[["N/A"]]}\'',
        "head -c 3000000 /dev/zero | tr '\\0' '['",
        'echo \'[{"gpu": 0, "asic": "N/A", "bus": 7, "vram": null}]\'',
    ],
)
def test_a_command_that_answers_nonsense_changes_nothing(
    tree: Tree, tmp_path: Path, environ: Environ, script: str
) -> None:
    write(tmp_path / "bin/amd-smi", f"#!/bin/sh\n{script}\n")
    (tmp_path / "bin/amd-smi").chmod(0o755)
    facts = probed(build(tree, "f2"), environ, PATH=f"{tmp_path}/bin:{os.environ['PATH']}")
    assert (facts.accelerators[0].name, facts.accelerators[0].memory_total) == (HALO, 120259084288)
    assert problems(facts) == []


def test_a_command_that_hangs_dies_with_its_child(tree: Tree, tmp_path: Path, environ: Environ) -> None:
    write(tmp_path / "bin/amd-smi", f'#!/bin/sh\necho $$ > "{tmp_path}/pid"\nexec sleep 600\n')
    (tmp_path / "bin/amd-smi").chmod(0o755)
    where = {**environ(), "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    facts = probe(build(tree, "f2").roots, deadline=1.2, environ=where)
    assert "amd_smi_timeout" in problems(facts)
    assert facts.accelerators[0].memory_total == 120259084288
    pid = int((tmp_path / "pid").read_text())
    until_sync(lambda: _dead(pid), 5, "the command is gone")


def _dead(pid: int) -> bool:
    try:
        return " Z " in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_module_that_does_not_fit_is_said_though_the_command_answers(
    tree: Tree, tmp_path: Path, new_rocm: Path, environ: Environ
) -> None:
    """The Python module of 7.0.2 cannot be imported with ROCm 10; its command names the GPU all the same."""
    folder = amd_smi(tmp_path / "bin", "f1")
    where = {**environ(new_rocm), "PATH": f"{folder}:{os.environ['PATH']}"}
    facts = probe(build(tree, "f1").roots, environ=where)
    assert facts.accelerators[0].name == F1_NAME
    assert "amd_smi_mismatch" in problems(facts)


# files that are not what they should be


def _everything(tree: Tree) -> tuple[Accelerator, ...]:
    """All that reads the kernel's files, without a child."""
    system = read_system(tree.roots)
    read_platform(tree.roots, {})
    pci.gpus(tree.roots)
    found = amd_sysfs.read(tree.roots, system.memory, system.cpu.model).accelerators
    AmdSampler(tree.roots).sample(found, system.memory, 5.0, 0.0)
    read_host(tree.roots, system.memory)
    return found


@pytest.mark.parametrize("kind", ["gone", "fifo", "folder", "garbage", "sentinel", "huge"])
def test_no_file_of_a_machine_can_hurt(tree: Tree, kind: str) -> None:
    """Each file of a machine in turn: nothing hangs, nothing raises, and no number is made up."""
    build(tree, "f5")
    device = tree.base / "sys/class/drm/card1/device"
    for name, text in sensors().items():
        write(device / name, text)
    write(device / "gpu_metrics", halo_metrics())
    tree.process(160210, "python3", drm={"3": fdinfo(1, gtt_kib=1, slot="0000:c5:00.0")})
    (whole,) = _everything(tree)
    everything = [path for top in ("proc", "sys", "etc") for path in sorted((tree.base / top).rglob("*"))]
    files = [path for path in everything if path.is_file() and not path.is_symlink()]
    assert len(files) > 30
    begin = time.monotonic()
    for path in files:
        before = path.read_bytes()
        path.unlink()
        _put(path, kind)
        found = _everything(tree)
        for gpu in found:
            assert gpu.memory_free is None or 0 <= gpu.memory_free <= 118111600640
            assert gpu.utilisation is None or 0 <= gpu.utilisation <= 100
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
        path.write_bytes(before)
    assert time.monotonic() - begin < 20
    assert _everything(tree) == (whole,)


def _put(path: Path, kind: str) -> None:
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "garbage":
        path.write_bytes(b"\xff\xfe\x00 -1 N/A ;:=\n\n\x80" * 20)
    elif kind == "sentinel":
        path.write_text("18446744073709551615\n4294967295\n65535\n")
    elif kind == "huge":
        with path.open("wb") as file:
            file.truncate(1 << 34)


def test_a_counter_that_never_answers_is_a_problem(
    tree: Tree, environ: Environ, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()

    def hang(_device: Path) -> drm.DrmMemory:
        release.wait(30)
        return drm.DrmMemory()

    monkeypatch.setattr(drm, "read_memory", hang)
    begin = time.monotonic()
    try:
        facts = probe(build(tree, "f2").roots, deadline=1.0, environ=environ())
    finally:
        release.set()
    assert time.monotonic() - begin < 4.0
    assert facts.accelerators == ()
    assert "amd_sysfs_timeout" in problems(facts)
    until_sync(lambda: not any(t.name.startswith("outrider-amd-sysfs") for t in threading.enumerate()), 5.0)
