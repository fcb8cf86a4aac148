"""GPUs on the PCI bus, as the kernel lists them: the cheapest sign that there is one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from hosts.reading import children, read_bytes, read_number
from hosts.roots import Roots

NVIDIA = 0x10DE
AMD = 0x1002
_ADDRESS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")
_GPU_CLASSES = {0x03, 0x12}  # display controllers, processing accelerators
_CACHE_LIMIT = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PciGpu:
    """A display or compute device: `address` like `0000:01:00.0`, `driver` the kernel module bound to it."""

    address: str
    vendor: int
    device: int | None
    driver: str | None


def address(text: object) -> str | None:
    """A PCI address in its one spelling, `0000:01:00.0`, or None.

    NVML writes eight digits of domain and capitals, lspci none at all.
    """
    match = _ADDRESS.fullmatch(text.strip().lower()) if isinstance(text, str) else None
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{bus}:{device}.{function}"


def gpus(roots: Roots) -> tuple[PciGpu, ...]:
    """Every GPU on the bus in the order of its address, whoever made it."""
    found = []
    for folder in children(roots.sys / "bus/pci/devices"):
        vendor = read_number(folder / "vendor")
        kind = read_number(folder / "class")
        where = address(folder.name)
        if where is None or vendor is None or (kind is not None and kind >> 16 not in _GPU_CLASSES):
            continue
        found.append(PciGpu(where, vendor, read_number(folder / "device"), link_name(folder / "driver")))
    return tuple(sorted(found, key=lambda gpu: gpu.address))


def link_name(link: Path) -> str | None:
    """The last part of what a symbolic link points to, or None."""
    try:
        return link.readlink().name or None
    except (OSError, ValueError):
        return None


def find_library(name: str, roots: Roots, search: str | None) -> str | None:
    """Where the dynamic loader would find a library: a path, or the bare name if only its cache knows it.

    `search` is LD_LIBRARY_PATH. Loading it to see would run its constructors, and
    asking ldconfig costs a process; a look into folders and the cache file does.
    """
    folders = [Path(part) for part in (search or "").split(":") if part]
    for folder in (*folders, *roots.libraries):
        path = folder / name
        try:
            if path.is_file():
                return str(path)
        except (OSError, ValueError):
            continue
    cache = read_bytes(roots.etc / "ld.so.cache", _CACHE_LIMIT)
    return name if cache is not None and b"\0" + name.encode() + b"\0" in cache else None
