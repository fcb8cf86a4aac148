"""AMD GPUs read again and again: counters, sensors, throttling, memory that no counter shows, and who uses them."""

from __future__ import annotations

import os
import struct
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosts import amd_metrics, amd_sysfs, drm
from hosts.amd_growth import Growth
from hosts.amd_sample import AmdSampler
from hosts.drm_clients import AGAIN, Client, DrmClients, parse_fdinfo
from hosts.facts import Accelerator, Memory
from hosts.gpu_sample import GpuProcess, GpuSample
from tests.hosts.trees import GIB, Drm, Kfd, Tree, fdinfo, strix_halo, write
from tests.waiting import until_sync

PCI = "0000:c6:00.0"
CARD = "sys/class/drm/card1/device"
BIG = Memory(121 * GIB, 110 * GIB)


def gpus(tree: Tree, system: Memory = BIG) -> tuple[Accelerator, ...]:
    return amd_sysfs.read(tree.roots, system).accelerators


def sample(sampler: AmdSampler, tree: Tree, system: Memory = BIG, now: float = 0.0) -> GpuSample:
    samples, problems = sampler.sample(gpus(tree, system), system, 5.0, now)
    assert problems == ()
    return samples[PCI]


def halo_metrics(**counters: int) -> bytes:
    """gpu_metrics 3.0 as Strix Halo has it, all sensors absent."""
    raw = bytearray(b"\xff" * 264)
    struct.pack_into("<HBB", raw, 0, 264, 3, 0)
    struct.pack_into("<H", raw, 174, counters.get("clock", 600))
    for name, offset in (("prochot", 228), ("spl", 232), ("fppt", 236), ("sppt", 240), ("core", 244), ("gfx", 248)):
        struct.pack_into("<I", raw, offset, counters.get(name, 0))
    return bytes(raw)


def test_all_of_one_gpu(tree: Tree) -> None:
    strix_halo(tree)
    write(tree.base / CARD / "gpu_metrics", halo_metrics(clock=2900))
    one = sample(AmdSampler(tree.roots), tree)
    assert (one.pci, one.memory_total, one.memory_used) == (PCI, 120259084288, 1010827264)
    assert one.memory_free == 102 * GIB
    assert (one.utilisation, one.temperature_c, one.power_w, one.power_limit_w) == (7, 38.0, 15.004, None)
    assert (one.clock_mhz, one.idle, one.throttled_by, one.processes) == (2900, False, None, ())


def test_what_held_the_gpu_back_since_the_last_sample(tree: Tree) -> None:
    strix_halo(tree)
    sampler = AmdSampler(tree.roots)
    path = tree.base / CARD / "gpu_metrics"
    write(path, halo_metrics(spl=5, gfx=7))
    assert sample(sampler, tree).throttled_by is None  # nothing to compare with
    write(path, halo_metrics(spl=5, gfx=7))
    assert sample(sampler, tree).throttled_by == ()
    write(path, halo_metrics(spl=6, gfx=9))
    assert sample(sampler, tree).throttled_by == ("software_power_cap", "software_thermal")
    write(path, halo_metrics(spl=6, gfx=9, prochot=1))
    assert sample(sampler, tree).throttled_by == ("hardware_thermal",)


@pytest.mark.parametrize(
    ("bits", "names"),
    [
        ([], ()),
        ([4], ("software_power_cap",)),
        ([33, 36], ("software_thermal",)),
        ([16, 47], ("software_power_cap", "hardware_thermal")),
        ([56], ()),
    ],
)
def test_a_cards_status(bits: list[int], names: tuple[str, ...]) -> None:
    raw = bytearray(120)
    struct.pack_into("<HBB", raw, 0, 120, 1, 3)
    struct.pack_into("<H", raw, 54, 2304)
    struct.pack_into("<Q", raw, 112, sum(1 << bit for bit in bits))
    found = amd_metrics.parse(bytes(raw))
    assert (found.clock_mhz, amd_metrics.throttled(found, None)) == (2304, names)
    struct.pack_into("<Q", raw, 112, 2**64 - 1)
    assert amd_metrics.throttled(amd_metrics.parse(bytes(raw)), None) is None


@given(st.one_of(st.binary(max_size=300), st.binary(max_size=300).map(lambda b: halo_metrics()[:200] + b)))
def test_no_table_breaks_it(raw: bytes) -> None:
    found = amd_metrics.parse(raw)
    amd_metrics.throttled(found, found)
    assert amd_metrics.parse(halo_metrics()[:255]) == amd_metrics.Metrics()


def test_a_card_that_sleeps_is_not_asked_for_its_sensors(tree: Tree) -> None:
    strix_halo(tree)
    write(tree.base / CARD / "power/runtime_status", "suspended\n")
    one = sample(AmdSampler(tree.roots), tree)
    assert (one.utilisation, one.temperature_c, one.memory_used) == (None, None, 1010827264)


def test_a_gpu_that_is_gone_has_no_sample(tree: Tree) -> None:
    found = gpus(strix_halo(tree))
    (tree.base / "sys/class/drm/card1").rename(tree.base / "gone")
    assert AmdSampler(tree.roots).sample(found, BIG, 5.0, 0.0) == ({}, ())


def test_sensors_that_hang_cost_only_themselves_and_the_next_sample_little(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()

    def hang(_device: Path) -> drm.DrmSensors:
        release.wait(30)
        return drm.DrmSensors()

    found = gpus(strix_halo(tree))
    monkeypatch.setattr(drm, "read_sensors", hang)
    sampler = AmdSampler(tree.roots)
    try:
        for _ in range(2):
            begin = time.monotonic()
            samples, problems = sampler.sample(found, BIG, 0.6, 0.0)
            assert time.monotonic() - begin < 2.0
            assert [problem.code for problem in problems] == ["amd_sysfs_timeout"]
            assert (samples[PCI].memory_used, samples[PCI].temperature_c) == (1010827264, None)
    finally:
        release.set()
    until_sync(lambda: not any(t.name.startswith("outrider-amd-sample") for t in threading.enumerate()), 5.0)


# growth


def test_what_no_counter_shows_is_found_in_what_is_available() -> None:
    """Kernel 6.18: 51 GB loaded, gtt_used stays at nearly nothing."""
    growth = Growth()
    assert growth.used(Memory(120 * GIB, 115 * GIB), GIB, computing=False) == GIB
    assert growth.used(Memory(120 * GIB, 64 * GIB), GIB, computing=True) == 52 * GIB
    assert growth.used(Memory(120 * GIB, 114 * GIB), GIB, computing=True) == 2 * GIB


def test_what_the_counters_show_is_not_counted_twice() -> None:
    growth = Growth()
    growth.used(Memory(120 * GIB, 115 * GIB), 0, computing=False)
    assert growth.used(Memory(120 * GIB, 75 * GIB), 40 * GIB, computing=True) == 40 * GIB


def test_the_baseline_is_taken_anew_whenever_nothing_computes() -> None:
    growth = Growth()
    growth.used(Memory(120 * GIB, 115 * GIB), 0, computing=False)
    assert growth.used(Memory(120 * GIB, 95 * GIB), 0, computing=True) == 20 * GIB  # a compiler, in truth
    assert growth.used(Memory(120 * GIB, 95 * GIB), 0, computing=False) == 0
    assert growth.used(Memory(120 * GIB, 90 * GIB), 0, computing=True) == 5 * GIB
    growth.used(Memory(120 * GIB, 110 * GIB), 0, computing=True)  # others gave memory back: it sinks
    assert growth.used(Memory(120 * GIB, 90 * GIB), 0, computing=True) == 20 * GIB


def test_without_a_moment_of_rest_growth_is_unknown() -> None:
    assert Growth().used(Memory(120 * GIB, 60 * GIB), GIB, computing=True) is None


@given(st.lists(st.tuples(st.integers(0, 120), st.integers(0, 130), st.booleans())))
def test_growth_is_never_less_than_the_counters(steps: list[tuple[int, int, bool]]) -> None:
    growth = Growth()
    for available, counted, computing in steps:
        found = growth.used(Memory(120, available), counted, computing=computing)
        assert found is None or found >= counted


def test_used_is_the_largest_of_three(tree: Tree) -> None:
    """gtt_used, the sum over compute processes, and what is gone from the system; free also minds the reserve."""
    tree.machine().kfd(Kfd(bank=62 * GIB))
    tree.drm(Drm(vram_total=GIB // 2, vram_used=0, gtt_total=62 * GIB, gtt_used=GIB))
    sampler = AmdSampler(tree.roots)
    total = 121 * GIB
    assert sample(sampler, tree, Memory(total, 115 * GIB)).memory_used == GIB
    write(tree.base / "sys/class/kfd/kfd/proc/160210/vram_64506", f"{3 * GIB}\n")
    seen = sample(sampler, tree, Memory(total, 113 * GIB))
    assert (seen.memory_used, seen.memory_free) == (3 * GIB, 59 * GIB)
    write(tree.base / CARD / "mem_info_gtt_used", f"{7 * GIB}\n")
    assert sample(sampler, tree, Memory(total, 109 * GIB)).memory_used == 7 * GIB
    hidden = sample(sampler, tree, Memory(total, 65 * GIB))
    assert hidden.memory_used == 51 * GIB
    assert hidden.memory_free == 11 * GIB
    assert sample(sampler, tree, Memory(total, 10 * GIB)).memory_free == 0


# who uses it


def test_fdinfo() -> None:
    assert parse_fdinfo(fdinfo(7, vram_kib=2048, gtt_kib=1)) == (PCI, "7", Client(2048 * 1024, 1024))
    newer = "drm-driver:\tamdgpu\ndrm-pdev:\t0000:C6:00.0\ndrm-resident-vram:\t3 MiB\ndrm-resident-gtt:\t512\n"
    assert parse_fdinfo(newer) == (PCI, None, Client(3 * 1024**2, 512))
    for text in (None, "", "pos:\t0\n", "drm-driver:\ti915\ndrm-pdev:\t0000:00:02.0\n", "drm-driver:\tamdgpu\n"):
        assert parse_fdinfo(text) is None
    assert parse_fdinfo("drm-driver: amdgpu\ndrm-pdev: 0000:c6:00.0\ndrm-memory-vram: -5 KiB\n") == (
        PCI,
        None,
        Client(),
    )


def test_processes_with_an_open_render_node(tree: Tree) -> None:
    tree.process(10, "gnome-shell", drm={"7": fdinfo(1, vram_kib=100), "9": fdinfo(1, vram_kib=100)})
    tree.process(11, "firefox", drm={"5": fdinfo(1, vram_kib=100), "6": fdinfo(2, gtt_kib=50)})  # handed over by 10
    tree.process(12, "bash").process(13, "empty", drm={"3": ""})
    clients = DrmClients(tree.roots)
    assert clients.read(0.0) == {10: {PCI: Client(102400, 0)}, 11: {PCI: Client(0, 51200)}}
    tree.process(14, "llama-server", drm={"3": fdinfo(3, gtt_kib=7)})
    write(tree.base / "proc/11/fdinfo/6", fdinfo(2, gtt_kib=60))
    assert clients.read(1.0)[14] == {PCI: Client(0, 7168)}  # a new process is seen at once
    assert clients.read(1.0)[11] == {PCI: Client(0, 61440)}
    write(tree.base / "proc/12/fdinfo/4", fdinfo(4, gtt_kib=1))
    (tree.base / "proc/12/fd/4").symlink_to("/dev/dri/renderD128")
    assert 12 not in clients.read(2.0)
    (tree.base / "proc/14").rename(tree.base / "ended")
    later = clients.read(AGAIN + 1.0)
    assert set(later) == {10, 11, 12}


def test_a_descriptor_that_is_something_else_does_not_block(tree: Tree) -> None:
    tree.process(10, "x", drm={"3": ""})
    (tree.base / "proc/10/fdinfo/3").unlink()
    os.mkfifo(tree.base / "proc/10/fdinfo/3")
    write(tree.base / "proc/11/fd", "no folder")
    assert DrmClients(tree.roots).read(0.0) == {}


def test_one_process_is_counted_once(tree: Tree) -> None:
    strix_halo(tree)
    write(tree.base / "sys/class/kfd/kfd/proc/4242/vram_64506", f"{3 * GIB}\n")
    write(tree.base / "sys/class/kfd/kfd/proc/nonsense/vram_64506", "1\n")
    tree.process(4242, "llama-server", drm={"3": fdinfo(1, vram_kib=1024, gtt_kib=2 * 1024 * 1024)})
    tree.process(99, "kwin_wayland", drm={"3": fdinfo(2, vram_kib=1024, gtt_kib=1024)})
    assert sample(AmdSampler(tree.roots), tree).processes == (
        GpuProcess(4242, 3 * GIB, "compute"),
        GpuProcess(99, 2 * 1024**2, "graphics"),
    )
