"""KFD's topology: names of architectures, addresses, per-process memory."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosts import kfd
from tests.hosts.trees import Kfd, Tree, write


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (110501, "gfx1151"),
        (90010, "gfx90a"),
        (90012, "gfx90c"),
        (110000, "gfx1100"),
        (100300, "gfx1030"),
        (90402, "gfx942"),
        (120001, "gfx1201"),
        (0, None),
        (-5, None),
        (91600, None),
        (2**64 - 1, None),
    ],
)
def test_names_of_known_versions(version: int, name: str | None) -> None:
    assert kfd.gfx_name(version) == name


@given(st.integers(1, 99), st.integers(0, 15), st.integers(0, 15))
def test_a_name_holds_the_version_it_was_made_of(major: int, minor: int, stepping: int) -> None:
    name = kfd.gfx_name(major * 10000 + minor * 100 + stepping)
    assert name is not None
    assert (int(name[3:-2]), int(name[-2], 16), int(name[-1], 16)) == (major, minor, stepping)


@given(st.integers())
def test_any_number_is_a_name_or_none(version: int) -> None:
    name = kfd.gfx_name(version)
    assert name is None or (name.startswith("gfx") and 6 <= len(name) <= 7)


@pytest.mark.parametrize(
    ("location", "domain", "address"),
    [
        (50432, 0, "0000:c5:00.0"),
        (50688, 0, "0000:c6:00.0"),
        (0x0309, 1, "0001:03:01.1"),
        (-1, 0, None),
        (2**32, 0, None),
    ],
)
def test_addresses(location: int, domain: int, address: str | None) -> None:
    assert kfd.pci_address(location, domain) == address


@given(st.integers(0, 255), st.integers(0, 31), st.integers(0, 7))
def test_an_address_holds_the_location_it_was_made_of(bus: int, device: int, function: int) -> None:
    assert kfd.pci_address(bus << 8 | device << 3 | function) == f"0000:{bus:02x}:{device:02x}.{function}"


def test_memory_of_processes_is_summed_by_gpu(tree: Tree) -> None:
    tree.kfd(Kfd(gpu_id=64506, location_id=50432, used={160210: 3883843584, 160300: 1000}))
    write(tree.base / "sys/class/kfd/kfd/proc/7/vram_64506", "18446744073709551615\n")
    write(tree.base / "sys/class/kfd/kfd/proc/8/vram_nonsense", "5\n")
    write(tree.base / "sys/class/kfd/kfd/proc/9/vram_11", "5\n")
    assert kfd.used_by_processes(tree.roots) == {64506: 3883844584, 11: 5}
    (node,) = kfd.read_topology(tree.roots)
    assert (node.gpu_id, node.pci, node.used) == (64506, "0000:c5:00.0", 3883844584)


def test_nodes_that_are_no_gpu_or_unreadable_are_left_out(tree: Tree) -> None:
    tree.kfd(Kfd(gpu_id=1), Kfd(gpu_id=2, simd_count=0), Kfd(gpu_id=3, gfx_target_version=0))
    write(tree.base / "sys/class/kfd/kfd/topology/nodes/4/properties", b"\xff\xff")
    (tree.base / "sys/class/kfd/kfd/topology/nodes/5").mkdir()
    os.mkfifo(tree.base / "sys/class/kfd/kfd/topology/nodes/5/properties")
    assert [node.gpu_id for node in kfd.read_topology(tree.roots)] == [1]


def test_compute_units_pool_and_serial(tree: Tree) -> None:
    tree.kfd(Kfd(simd_count=80, bank=118111600640, unique_id=0), Kfd(simd_count=192, unique_id=0x1F2E3D4C5B6A7988))
    apu, card = kfd.read_topology(tree.roots)
    assert (apu.compute_units, apu.pool, apu.unique_id) == (40, 118111600640, None)
    assert (card.compute_units, card.pool, card.unique_id) == (96, None, 0x1F2E3D4C5B6A7988)
