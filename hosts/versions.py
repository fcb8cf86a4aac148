"""Versions and boot settings that decide whether a GPU works: firmware, BIOS, ROCm, kernel parameters.

All of it is read from files, none of it from a device. Nothing here names a person or a single
machine: no serial number, no UUID, and of the kernel's command line only what is about GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from hosts.facts import Platform
from hosts.reading import children, key_values, known, number, read_bytes, read_number, read_text
from hosts.roots import Roots

TTM_MODULES = ("amdttm", "amd_ttm", "ttm")
"""The memory manager of amdgpu: the out-of-tree driver has its own, and leaves the kernel's at 0."""
_PARAMETERS = ("amdgpu.", *(f"{name}." for name in TTM_MODULES), "nvidia.", "nvidia-drm.", "nvidia_drm.", "amd_iommu")
_PLAIN = frozenset(
    {"iommu", "intel_iommu", "pcie_aspm", "pci", "transparent_hugepage", "default_hugepagesz", "hugepages", "mem"}
)
_ROCM_FILES = (".info/version", ".info/version-utils", ".info/version-lib", ".info/version-dev")
_VERSION = re.compile(r"\d+(?:\.\d+){1,3}")
_ROCM_HEADER = re.compile(r"^#define\s+ROCM_VERSION_(MAJOR|MINOR|PATCH)\s+(\d{1,4})\s*$", re.MULTILINE)
_FIRMWARE_PACKAGES = ("firmware-amd-graphics", "linux-firmware", "linux-firmware-amd", "linux-firmware-amdgpu")
_DPKG_LIMIT = 16 * 1024 * 1024
_KERNEL = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")


def read_platform(roots: Roots, environ: Mapping[str, str], *, amd: bool = True) -> Platform:
    """What can be known without a device. Without `amd` nothing is looked up that only AMD's driver needs."""
    dmi = roots.sys / "class/dmi/id"
    module, pages, pool = _ttm(roots) if amd else (None, None, None)
    given = gpu_parameters(roots)
    rocm, folder = _rocm(roots, environ) if amd else (None, None)
    return Platform(
        product=_dmi(dmi, "product_name"),
        bios_vendor=_dmi(dmi, "bios_vendor"),
        bios_version=_dmi(dmi, "bios_version"),
        bios_date=_dmi(dmi, "bios_date"),
        kernel_parameters=given,
        ttm_module=module,
        ttm_pages_limit=pages,
        ttm_page_pool_size=pool,
        ttm_pages_limit_boot=_boot_pages(given),
        amdgpu_version=read_text(roots.sys / "module/amdgpu/version", 256) if amd else None,
        rocm=rocm,
        rocm_path=folder,
        linux_firmware=_linux_firmware(roots) if amd else None,
    )


def kernel_version(release: str | None) -> tuple[int, int, int] | None:
    """`(6, 17, 1)` of `6.17.1-300.fc43.x86_64`; None for what begins with no version."""
    match = _KERNEL.match(release or "")
    return None if match is None else (int(match[1]), int(match[2]), int(match[3] or 0))


def gpu_parameters(roots: Roots) -> dict[str, str]:
    """The kernel's command line, as far as it is about GPUs and their memory; the first of equal names wins."""
    text = read_text(roots.proc / "cmdline", 65536) or ""
    given = key_values("\n".join(word if "=" in word else f"{word}=" for word in text.split()), "=")
    return {name: value for name, value in given.items() if name in _PLAIN or name.startswith(_PARAMETERS)}


def _dmi(folder: Path, name: str) -> str | None:
    text = read_text(folder / name, 1024)
    placeholders = {"to be filled by o.e.m.", "default string", "system product name", "not applicable", "none"}
    return None if text is None or text.lower() in placeholders else text


def _ttm(roots: Roots) -> tuple[str | None, int | None, int | None]:
    """`(module, pages_limit, page_pool_size)` of the manager that is in use: the one that says a limit."""
    for module in TTM_MODULES:
        folder = roots.sys / "module" / module / "parameters"
        if pages := known(read_number(folder / "pages_limit")):
            return module, pages, known(read_number(folder / "page_pool_size"))
    return None, None, None


def _boot_pages(given: Mapping[str, str]) -> int | None:
    for module in TTM_MODULES:
        if pages := known(number(given.get(f"{module}.pages_limit"))):
            return pages
    return None


def _rocm(roots: Roots, environ: Mapping[str, str]) -> tuple[str | None, str | None]:
    """ROCm's version and folder; `(None, None)` where the host has none, which is no fault: images bring theirs."""
    for folder in _rocm_folders(roots, environ):
        for name in _ROCM_FILES:
            if match := _VERSION.match(read_text(folder / name, 256) or ""):
                return match[0], str(folder)
    for folder in (*_rocm_folders(roots, environ), roots.usr):
        header = read_text(folder / "include/rocm-core/rocm_version.h", 65536)
        parts = dict(_ROCM_HEADER.findall(header or ""))
        if parts.keys() >= {"MAJOR", "MINOR"}:
            return f"{parts['MAJOR']}.{parts['MINOR']}.{parts.get('PATCH', '0')}", str(folder)
    return None, None


def _rocm_folders(roots: Roots, environ: Mapping[str, str]) -> Iterator[Path]:
    for name in ("ROCM_HOME", "ROCM_PATH"):
        if (value := environ.get(name)) and value.startswith("/"):
            yield Path(value)
    yield roots.opt / "rocm"
    # several releases side by side without the link that chooses one: the newest
    yield from reversed([folder for folder in children(roots.opt) if folder.name.startswith("rocm-")])


def _linux_firmware(roots: Roots) -> str | None:
    """The version of the package with AMD's firmware, by dpkg or pacman; RPM's database needs a library."""
    raw = read_bytes(roots.var / "lib/dpkg/status", _DPKG_LIMIT)
    if raw is not None:
        for package in _FIRMWARE_PACKAGES:
            start = raw.find(b"\nPackage: " + package.encode() + b"\n")
            if start < 0:
                continue
            end = raw.find(b"\n\n", start + 1)
            fields = key_values(raw[start : end if end > 0 else start + 65536].decode("utf-8", "replace"), ":")
            if fields.get("Status", "").endswith(" installed"):
                return fields.get("Version")
    for folder in children(roots.var / "lib/pacman/local"):
        name, _, version = folder.name.partition("-2")  # versions are dates
        if name in _FIRMWARE_PACKAGES and version:
            return f"2{version}"
    return None
