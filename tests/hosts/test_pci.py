"""The PCI bus, and where a library would be found."""

from __future__ import annotations

import pytest

from hosts import pci
from tests.hosts.trees import Tree, write


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("00000000:01:00.0", "0000:01:00.0"),
        ("0000:C6:00.0", "0000:c6:00.0"),
        ("00010000:0A:1F.7", "10000:0a:1f.7"),
        ("c5:00.0", "0000:c5:00.0"),
        ("0000:c5:00.8", None),
        ("", None),
        (None, None),
        (7, None),
    ],
)
def test_addresses_have_one_spelling(written: object, expected: str | None) -> None:
    assert pci.address(written) == expected


def test_gpus_are_display_and_compute_devices_in_bus_order(tree: Tree) -> None:
    tree.pci("0000:c6:00.0", pci.AMD, 0x1586, kind=0x038000, driver="amdgpu")
    tree.pci("0000:01:00.1", pci.NVIDIA, 0x1AEF, kind=0x040300)  # the card's sound
    tree.pci("0000:01:00.0", pci.NVIDIA, 0x2204)
    tree.pci("0000:41:00.0", pci.AMD, 0x74A1, kind=0x120000)
    tree.pci("0000:00:1f.0", 0x8086, 0x1234, kind=0x060100)
    write(tree.base / "sys/bus/pci/devices/0000:02:00.0/vendor", "nonsense")
    assert [(gpu.address, gpu.driver) for gpu in pci.gpus(tree.roots)] == [
        ("0000:01:00.0", None),
        ("0000:41:00.0", None),
        ("0000:c6:00.0", "amdgpu"),
    ]


def test_a_library_is_found_by_path_then_by_the_loaders_cache(tree: Tree) -> None:
    assert pci.find_library("libx.so.1", tree.roots, None) is None
    write(tree.base / "etc/ld.so.cache", b"glibc-ld.so.cache1.1\0libx.so.1\0/odd/place/libx.so.1\0")
    assert pci.find_library("libx.so.1", tree.roots, None) == "libx.so.1"
    assert pci.find_library("ibx.so.1", tree.roots, None) is None
    write(tree.base / "lib/libx.so.1", "")
    assert pci.find_library("libx.so.1", tree.roots, "/nowhere:") == str(tree.base / "lib/libx.so.1")
    write(tree.base / "first/libx.so.1", "")
    first = tree.base / "first"
    assert pci.find_library("libx.so.1", tree.roots, str(first)) == str(first / "libx.so.1")
