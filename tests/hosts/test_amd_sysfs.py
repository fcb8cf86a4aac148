"""AMD GPUs from the kernel's files, on trees of values that people read on real machines."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hosts import amd_sysfs, kfd
from hosts.amd_sysfs import budget, is_apu
from hosts.drm import DrmMemory
from hosts.facts import Accelerator, Memory
from hosts.found import Found
from hosts.versions import read_platform
from tests.hosts.trees import GIB, KIB, Drm, Kfd, Tree, sensors, strix_halo, write

BIG = Memory(128 * GIB, 120 * GIB)


def read(tree: Tree, system: Memory = BIG) -> Found:
    return amd_sysfs.read(tree.roots, system, "AMD RYZEN AI MAX+ 395 w/ Radeon 8060S")


def only(tree: Tree, system: Memory = BIG) -> Accelerator:
    (gpu,) = read(tree, system).accelerators
    return gpu


def test_strix_halo_with_128_gb(tree: Tree) -> None:
    strix_halo(tree)
    total = 127098456 * KIB
    gpu = only(tree, Memory(total, total - 4 * GIB))
    assert (gpu.vendor, gpu.name, gpu.arch, gpu.pci) == ("amd", "AMD Radeon 8060S", "gfx1151", "0000:c6:00.0")
    assert gpu.unified
    assert gpu.uuid is None
    assert gpu.compute_units == 40
    assert gpu.memory_total == 120259084288  # not the carve-out, not the sum
    assert gpu.memory_free == total - 12 * GIB  # less than what the pool has left
    assert gpu.details["reserve"] == 8 * GIB
    assert gpu.details["usable"] == min(120259084288, total - 8 * GIB)
    assert (gpu.details["vram_total"], gpu.details["gtt_total"]) == (2147483648, 120259084288)
    assert gpu.details["device_id"] == "0x1586"
    assert gpu.details["revision"] == "0xc1"
    assert (gpu.utilisation, gpu.temperature_c, gpu.power_w, gpu.power_limit_w) == (7, 38.0, 15.004, None)
    assert gpu.devices == ("/dev/kfd", "/dev/dri/renderD128")
    assert gpu.driver == "7.1.0"


@pytest.mark.parametrize(
    ("kfd_gid", "render_gid", "groups"), [(992, 993, (992, 993)), (993, 993, (993,)), (0, 993, (993,))]
)
def test_the_groups_of_the_nodes(tree: Tree, kfd_gid: int, render_gid: int, groups: tuple[int, ...]) -> None:
    strix_halo(tree).nodes(128, kfd_gid=kfd_gid, render_gid=render_gid)
    # only root gives files to other groups: elsewhere the nodes are of our own
    assert only(tree).groups == (groups if os.geteuid() == 0 else (os.getegid(),))


def test_96_gib_pool_of_a_tablet(tree: Tree) -> None:
    tree.machine(total_kib=120 * GIB // KIB)
    tree.kfd(Kfd()).drm(Drm(vram_total=4294967296, gtt_total=103079215104, vram_used=0, gtt_used=0)).nodes(128)
    gpu = only(tree)
    assert gpu.memory_total == 98304 * 1024**2  # what llama.cpp says on that machine
    assert gpu.memory_free == 98304 * 1024**2


def test_the_drivers_own_pool_agrees_with_gtt(tree: Tree) -> None:
    tree.machine().kfd(Kfd(bank=118111600640))
    tree.drm(Drm(vram_total=536870912, gtt_total=118111600640, vram_used=0, gtt_used=0))
    gpu = only(tree)
    assert gpu.memory_total == gpu.details["kfd_pool"] == 118111600640


def test_memory_of_compute_processes_counts_where_the_drivers_counter_misses_it(tree: Tree) -> None:
    tree.machine().kfd(Kfd(location_id=50432, gpu_id=64506, used={160210: 51 * GIB}))
    tree.drm(Drm(slot="0000:c5:00.0", vram_total=GIB // 2, vram_used=0, gtt_total=110 * GIB, gtt_used=GIB // 8))
    gpu = only(tree)
    assert gpu.details["memory_used"] == 51 * GIB
    assert gpu.memory_free == 59 * GIB


def test_gtt_above_the_memory_is_said_and_what_is_usable_is_not(tree: Tree) -> None:
    system = Memory(int(124.92 * GIB), 121 * GIB)
    tree.machine().kfd(Kfd()).drm(Drm(vram_total=536870912, vram_used=0, gtt_total=137438953472, gtt_used=0)).nodes(128)
    found = read(tree, system)
    (gpu,) = found.accelerators
    assert gpu.memory_total == 137438953472
    assert gpu.details["usable"] == system.total - 8 * GIB
    assert gpu.memory_free == 113 * GIB
    (problem,) = found.problems
    assert problem.code == "gtt_above_memory"
    assert problem.hint is not None
    assert f"ttm.pages_limit={(system.total - 8 * GIB) // 4096}" in problem.hint


def test_an_8_gib_carve_out_is_not_added_to_gtt(tree: Tree) -> None:
    tree.machine().kfd(Kfd()).drm(Drm(vram_total=8589934592, vram_used=0, gtt_total=133143986176, gtt_used=0))
    found = read(tree)
    assert found.accelerators[0].memory_total == 133143986176
    assert "carve_out_large" in [problem.code for problem in found.problems]


def test_the_kernels_default_of_half_the_memory_is_pointed_out(tree: Tree) -> None:
    tree.machine().kfd(Kfd()).drm(Drm(vram_total=GIB // 2, gtt_total=62 * GIB)).nodes(128)
    found = read(tree, Memory(124 * GIB, 120 * GIB))
    assert [problem.code for problem in found.problems] == ["gtt_limited"]


def test_a_carve_out_larger_than_gtt_is_the_pool_and_stands_outside_system_memory() -> None:
    memory = DrmMemory(vram_total=96 * GIB, vram_used=GIB, gtt_total=16 * GIB, gtt_used=0)
    room = budget(unified=True, memory=memory, kfd_used=0, system=Memory(31 * GIB, 20 * GIB))
    assert room is not None
    assert (room.pool, room.total, room.free, room.usable) == ("vram", 96 * GIB, 95 * GIB, 96 * GIB)


def test_free_never_goes_below_zero() -> None:
    memory = DrmMemory(vram_total=GIB, gtt_total=100 * GIB, gtt_used=101 * GIB)
    room = budget(unified=True, memory=memory, kfd_used=None, system=Memory(128 * GIB, GIB))
    assert room is not None
    assert room.free == 0


def test_a_card_has_its_own_memory(tree: Tree) -> None:
    tree.machine().kfd(
        Kfd(gfx_target_version=110000, simd_count=192, location_id=0x0300, drm_render_minor=129, unique_id=0xABC)
    )
    card = Drm(
        card="card0",
        device="0x744c",
        slot="0000:03:00.0",
        vram_total=25753026560,
        vram_used=1073741824,
        gtt_total=64 * GIB,
        gtt_used=0,
        product_name="Radeon RX 7900 XTX",
        render_minor=129,
        sensors={**sensors(apu=False), "hwmon/hwmon4/power1_cap": "327000000"},
    )
    gpu = only(tree.drm(card).nodes(129))
    assert (gpu.name, gpu.arch, gpu.unified) == ("Radeon RX 7900 XTX", "gfx1100", False)
    assert (gpu.memory_total, gpu.memory_free) == (25753026560, 25753026560 - 1073741824)
    assert gpu.uuid == "GPU-0000000000000abc"
    assert gpu.power_limit_w == 327.0
    assert gpu.devices == ("/dev/kfd", "/dev/dri/renderD129")


def test_a_small_card_in_a_big_machine_is_no_apu(tree: Tree) -> None:
    tree.machine().kfd(Kfd(gfx_target_version=100304)).drm(Drm(vram_total=4 * GIB, gtt_total=62 * GIB))
    gpu = only(tree)
    assert (gpu.arch, gpu.unified, gpu.memory_total) == ("gfx1034", False, 4 * GIB)


@pytest.mark.parametrize(
    ("vram", "gtt", "expected"), [(GIB // 2, 15 * GIB, True), (4 * GIB, 96 * GIB, True), (8 * GIB, 96 * GIB, False)]
)
def test_an_unknown_gpu_is_judged_by_its_pools(vram: int, gtt: int, *, expected: bool) -> None:
    assert is_apu(None, DrmMemory(vram_total=vram, gtt_total=gtt)) is expected


def test_old_apus_share_their_node_with_the_processor(tree: Tree) -> None:
    tree.machine().kfd(Kfd(gfx_target_version=90402))
    properties = tree.base / "sys/class/kfd/kfd/topology/nodes/1/properties"
    write(properties, properties.read_text().replace("cpu_cores_count 0", "cpu_cores_count 24"))
    (node,) = kfd.read_topology(tree.roots)
    assert is_apu(node, DrmMemory())


def test_two_gpus_are_matched_to_their_cards_by_address(tree: Tree) -> None:
    tree.machine().kfd(
        Kfd(gfx_target_version=110000, location_id=0x0300, drm_render_minor=129, gpu_id=1),
        Kfd(location_id=0xC600, drm_render_minor=128, gpu_id=2),
    )
    tree.drm(
        Drm(card="card0", slot="0000:c6:00.0", vram_total=GIB, gtt_total=100 * GIB),
        Drm(card="card1", slot="0000:03:00.0", vram_total=24 * GIB, gtt_total=60 * GIB),
    )
    found = read(tree).accelerators
    assert [(g.index, g.pci, g.details["card"], g.memory_total) for g in found] == [
        (0, "0000:03:00.0", "card1", 24 * GIB),
        (1, "0000:c6:00.0", "card0", 100 * GIB),
    ]


def test_without_addresses_the_render_node_matches(tree: Tree) -> None:
    tree.machine().kfd(Kfd(location_id=None, drm_render_minor=130))
    tree.drm(Drm(card="card1", slot=None, render_minor=130, vram_total=GIB, gtt_total=50 * GIB))
    gpu = only(tree)
    assert gpu.details["card"] == "card1"
    assert gpu.pci == "amd-0"


def test_a_card_without_compute_is_listed_with_the_reason(tree: Tree) -> None:
    tree.machine().drm(Drm(vram_total=GIB, gtt_total=50 * GIB)).nodes(128)
    found = read(tree)
    (gpu,) = found.accelerators
    assert (gpu.arch, gpu.devices) == (None, ("/dev/dri/renderD128",))
    assert "kfd_missing" in [problem.code for problem in found.problems]


def test_compute_without_a_card_uses_kfds_own_pool(tree: Tree) -> None:
    tree.machine().kfd(Kfd(bank=100 * GIB, used={5: 10 * GIB}))
    gpu = only(tree)
    assert (gpu.memory_total, gpu.memory_free, gpu.details["pool"]) == (100 * GIB, 90 * GIB, "gtt")


def test_missing_nodes_are_named(tree: Tree) -> None:
    tree.machine().kfd(Kfd()).drm(Drm(vram_total=GIB, gtt_total=100 * GIB))
    found = read(tree)
    assert found.accelerators[0].devices == ()
    assert [problem.detail for problem in found.problems if problem.code == "device_node_missing"] == [
        "/dev/kfd of GPU 0000:c6:00.0: No such file or directory",
        "/dev/dri/renderD128 of GPU 0000:c6:00.0: No such file or directory",
    ]


def test_garbage_and_sentinels_are_unknown(tree: Tree) -> None:
    tree.machine().kfd(Kfd())
    tree.drm(
        Drm(
            vram_total="0xffffffffffffffff",
            vram_used="N/A",
            gtt_total="",
            gtt_used=-1,
            sensors={
                "gpu_busy_percent": "65535",
                "hwmon/hwmon0/temp1_input": "hot",
                "hwmon/hwmon0/power1_input": "",
            },
        )
    )
    gpu = only(tree)
    assert gpu.memory_total is None
    assert gpu.memory_free is None
    assert (gpu.utilisation, gpu.temperature_c, gpu.power_w) == (None, None, None)
    assert gpu.arch == "gfx1151"


def test_fifos_in_place_of_files_do_not_block(tree: Tree) -> None:
    strix_halo(tree)
    for name in ("gpu_busy_percent", "mem_info_gtt_used", "hwmon/hwmon4/temp1_input"):
        path = tree.base / "sys/class/drm/card1/device" / name
        path.unlink()
        os.mkfifo(path)
    gpu = only(tree)
    assert (gpu.utilisation, gpu.temperature_c, gpu.power_w) == (None, None, 15.004)
    assert gpu.memory_total == 120259084288


def test_without_sensors_the_firmware_is_not_asked(tree: Tree) -> None:
    (gpu,) = amd_sysfs.read(strix_halo(tree).roots, BIG, sensors=False).accelerators
    assert (gpu.utilisation, gpu.temperature_c, gpu.power_w) == (None, None, None)
    assert gpu.memory_total == 120259084288


def test_kernel_parameters_that_do_nothing(tree: Tree) -> None:
    write(tree.base / "proc/cmdline", "quiet amdgpu.gtt_size=1 amdgpu.gttsize=131072 ttm.pages_limit=7\n")
    platform = read_platform(tree.roots, {})
    assert platform.ttm_pages_limit_boot == 7
    details = [problem.detail for problem in amd_sysfs.kernel_parameters(platform)]
    assert details == ["the kernel ignores amdgpu.gtt_size (a misspelling)", "amdgpu.gttsize=131072 is deprecated"]


FILES = (
    "sys/class/kfd/kfd/topology/nodes/1/properties",
    "sys/class/kfd/kfd/topology/nodes/1/gpu_id",
    "sys/class/kfd/kfd/topology/nodes/1/mem_banks/0/properties",
    "sys/class/drm/card1/device/uevent",
    "sys/class/drm/card1/device/device",
    "sys/class/drm/card1/device/mem_info_gtt_total",
    "sys/class/drm/card1/device/mem_info_vram_total",
    "sys/class/drm/card1/device/hwmon/hwmon4/temp1_input",
    "proc/cmdline",
)
NUMBERS = st.integers().map(lambda value: str(value).encode())


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.dictionaries(st.sampled_from(FILES), st.one_of(st.binary(max_size=64), NUMBERS), min_size=1))
def test_no_content_of_any_file_breaks_the_scan(tmp_path: Path, contents: dict[str, bytes]) -> None:
    tree = Tree(tmp_path / "fuzz")
    if not tree.base.exists():
        strix_halo(tree)
    before = {name: (tree.base / name).read_bytes() for name in contents}
    try:
        for name, content in contents.items():
            write(tree.base / name, content)
        found = read(tree)
        for gpu in found.accelerators:
            assert gpu.memory_free is None or gpu.memory_free >= 0
            json.dumps(gpu.details)
        amd_sysfs.kernel_parameters(read_platform(tree.roots, {}))
    finally:
        for name, content in before.items():
            write(tree.base / name, content)
