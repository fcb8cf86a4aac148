"""Versions and boot settings: firmware, BIOS, ROCm, the memory ceiling, kernels that are known to be bad."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hosts import amd_firmware, amd_sysfs, drm
from hosts.facts import HostFacts, Memory, Platform
from hosts.probe import probe
from hosts.versions import kernel_version, read_platform
from tests.hosts.conftest import Environ
from tests.hosts.trees import GIB, Tree, strix_halo, write

CARD = "sys/class/drm/card1/device"


def codes(tree: Tree, environ: Environ) -> list[str]:
    facts = probe(tree.roots, environ=environ())
    return [problem.code for problem in facts.problems if problem.vendor == "amd" and problem.code != "amd_smi_missing"]


@pytest.mark.parametrize(
    ("release", "version"),
    [("6.17.1-300.fc43.x86_64", (6, 17, 1)), ("7.1", (7, 1, 0)), ("6.18.4", (6, 18, 4)), ("rc", None), (None, None)],
)
def test_kernel_versions(release: str | None, version: tuple[int, int, int] | None) -> None:
    assert kernel_version(release) == version


@pytest.mark.parametrize(
    ("kernel", "gfx", "expected"),
    [
        ("6.18.3-200.fc43", 110501, ["kernel_too_old"]),
        ("6.18.4-200.fc43", 110501, []),
        ("6.8.0-45-generic", 110000, []),
        ("unknown", 110501, []),
    ],
)
def test_a_kernel_is_too_old_for_gfx1151_only(
    tree: Tree, environ: Environ, kernel: str, gfx: int, expected: list[str]
) -> None:
    strix_halo(tree).machine(kernel=kernel)
    properties = tree.base / "sys/class/kfd/kfd/topology/nodes/1/properties"
    write(properties, properties.read_text().replace("110501", str(gfx)))
    found = codes(tree, environ)
    assert [code for code in found if code == "kernel_too_old"] == expected


@pytest.mark.parametrize(("mes", "expected"), [(0x80, []), (0x83, ["firmware_bad"]), (0x86, ["firmware_suspect"])])
@pytest.mark.parametrize("debugfs", [False, "0000:c6:00.0", "1"])
def test_the_schedulers_firmware(
    tree: Tree, environ: Environ, mes: int, expected: list[str], debugfs: bool | str
) -> None:
    strix_halo(tree)
    if debugfs:
        write(
            tree.base / f"sys/kernel/debug/dri/{debugfs}/amdgpu_firmware_info",
            "VCE feature version: 0, firmware version: 0x00000000\n"
            f"MES_KIQ feature version: 6, firmware version: 0x0000006c\n"
            f"MES feature version: 1, firmware version: 0x{mes:08x}\nVBIOS version: 113-STRXLGEN-001\n",
        )
    else:
        write(tree.base / CARD / "fw_version/mes_fw_version", f"0x00001{mes:03x}\n")  # flags of the interface above
        write(tree.base / CARD / "fw_version/vce_fw_version", "0x00000000\n")
    write(tree.base / CARD / "vbios_version", "113-STRXLGEN-001\n")
    facts = probe(tree.roots, environ=environ())
    details = facts.accelerators[0].details
    assert details["mes_version"] == mes
    assert details["vbios"] == "113-STRXLGEN-001"
    firmware = details["firmware"]
    assert isinstance(firmware, dict)
    assert "vce" not in firmware
    assert codes(tree, environ) == expected


def test_a_bad_firmware_package_counts_where_the_driver_says_no_version(tree: Tree, environ: Environ) -> None:
    strix_halo(tree)
    status = (
        "Package: linux-firmware-free\nStatus: install ok installed\nVersion: 1\n\n"
        "Package: linux-firmware\nStatus: install ok installed\nArchitecture: all\nVersion: 20251125-1\n\nPackage: z\n"
    )
    write(tree.base / "var/lib/dpkg/status", f"Package: a\nVersion: 2\n\n{status}")
    assert codes(tree, environ) == ["firmware_bad"]
    write(tree.base / CARD / "fw_version/mes_fw_version", "0x00000080\n")
    assert codes(tree, environ) == []  # what runs is known, and is good


def test_versions_of_packages(tree: Tree) -> None:
    write(tree.base / "var/lib/dpkg/status", "Package: linux-firmware\nStatus: deinstall ok config-files\nVersion: 1\n")
    (tree.base / "var/lib/pacman/local/linux-firmware-amdgpu-20260110-1").mkdir(parents=True)
    (tree.base / "var/lib/pacman/local/linux-firmware-whence-20260110-1").mkdir()
    assert read_platform(tree.roots, {}).linux_firmware == "20260110-1"


def test_rocm_by_its_folders_and_by_its_header(tree: Tree) -> None:
    assert read_platform(tree.roots, {}).rocm is None
    write(
        tree.base / "usr/include/rocm-core/rocm_version.h",
        "#define ROCM_VERSION_MAJOR   6\n#define ROCM_VERSION_MINOR   4\n#define ROCM_VERSION_PATCH   2\n",
    )
    assert read_platform(tree.roots, {}).rocm == "6.4.2"
    write(tree.base / "opt/rocm-6.4.4/.info/version", "6.4.4-129\n")
    write(tree.base / "opt/rocm-7.2.0/.info/version", "7.2.0-43\n")
    assert read_platform(tree.roots, {}).rocm == "7.2.0"
    write(tree.base / "opt/rocm/.info/version", "7.13.0\n")
    write(tree.base / "own/.info/version-dev", "7.14\n")
    assert read_platform(tree.roots, {}).rocm == "7.13.0"
    mine = read_platform(tree.roots, {"ROCM_PATH": str(tree.base / "own")})
    assert (mine.rocm, mine.rocm_path) == ("7.14", str(tree.base / "own"))


def test_the_memory_ceiling_is_that_of_the_module_in_use(tree: Tree, environ: Environ) -> None:
    strix_halo(tree)
    write(tree.base / "sys/module/ttm/parameters/pages_limit", "29360128\n")
    write(tree.base / "sys/module/ttm/parameters/page_pool_size", "1024\n")
    write(tree.base / "proc/cmdline", "root=UUID=secret ttm.pages_limit=29360128 quiet amd_iommu=off user=bob\n")
    platform = probe(tree.roots, environ=environ()).platform
    assert (platform.ttm_module, platform.ttm_pages_limit, platform.ttm_page_pool_size) == ("ttm", 29360128, 1024)
    assert platform.ttm_pages_limit_boot == 29360128
    assert platform.kernel_parameters == {"ttm.pages_limit": "29360128", "amd_iommu": "off"}
    assert codes(tree, environ) == []
    write(tree.base / "sys/module/ttm/parameters/pages_limit", "0\n")  # the out-of-tree driver is in use
    write(tree.base / "sys/module/amdttm/parameters/pages_limit", "16000000\n")
    write(tree.base / "sys/module/amdgpu/version", "6.16.13\n")
    facts = probe(tree.roots, environ=environ())
    assert (facts.platform.ttm_module, facts.platform.ttm_pages_limit) == ("amdttm", 16000000)
    assert facts.platform.amdgpu_version == facts.accelerators[0].driver == "6.16.13"
    (problem,) = [problem for problem in facts.problems if problem.code == "kernel_parameter"]
    assert "amdttm.pages_limit=29360128" in str(problem.hint)


def test_the_firmware_of_the_board(tree: Tree) -> None:
    dmi = tree.base / "sys/class/dmi/id"
    for name, text in {
        "product_name": "GTR9 Pro",
        "bios_vendor": "American Megatrends International, LLC.",
        "bios_version": "GTR9P108",
        "bios_date": "Default string",
        "product_serial": "SERIAL",
        "product_uuid": "UUID",
    }.items():
        write(dmi / name, f"{text}\n")
    platform = read_platform(tree.roots, {}, amd=False)
    assert (platform.product, platform.bios_version, platform.bios_date) == ("GTR9 Pro", "GTR9P108", None)
    assert "SERIAL" not in str(platform)
    assert "UUID" not in str(platform)


def test_facts_files_without_a_platform_are_read(tree: Tree, environ: Environ) -> None:
    strix_halo(tree)
    write(tree.base / "opt/rocm/.info/version", "7.13.0\n")
    facts = probe(tree.roots, environ=environ())
    data = json.loads(json.dumps(facts.to_dict()))
    assert HostFacts.from_dict(data) == facts
    del data["platform"]
    assert HostFacts.from_dict(data).platform == Platform()


@pytest.mark.parametrize("make", ["garbage", "fifo", "folder", "huge"])
def test_files_that_are_something_else_are_unknown(tree: Tree, make: str) -> None:
    strix_halo(tree)
    names = (
        f"{CARD}/fw_version/mes_fw_version",
        f"{CARD}/vbios_version",
        "sys/module/ttm/parameters/pages_limit",
        "opt/rocm/.info/version",
        "var/lib/dpkg/status",
        "sys/class/dmi/id/bios_version",
        "usr/include/rocm-core/rocm_version.h",
    )
    for name in names:
        path = tree.base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        _spoil(path, make)
    platform = read_platform(tree.roots, {})
    assert (platform.rocm, platform.ttm_pages_limit, platform.linux_firmware) == (None, None, None)
    (card,) = drm.read_cards(tree.roots)
    assert amd_firmware.read_firmware(tree.roots, card).mes is None
    assert amd_sysfs.read(tree.roots, Memory(128 * GIB, 100 * GIB)).accelerators[0].arch == "gfx1151"


def _spoil(path: Path, make: str) -> None:
    if make == "garbage":
        path.write_bytes(b"\xff\x00\n\x01garbage: \n\n: :\n")
    elif make == "fifo":
        os.mkfifo(path)
    elif make == "folder":
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40)  # a terabyte of holes
