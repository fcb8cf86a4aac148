"""AMD's compute driver (KFD) as the kernel lists it below /sys/class/kfd: the truth about what ROCm can use."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hosts.reading import children, key_values, known, number, read_number, read_text
from hosts.roots import Roots

_VRAM_FILE = re.compile(r"vram_(\d{1,10})")
# graphics IPs that exist only inside processors (LLVM's AMDGPU target list, column "APU")
APUS = frozenset(f"gfx{version}" for version in (902, 909, "90c", 1013, 1033, 1035, 1036, 1103, 1150, 1151, 1152, 1153))
# and those that exist only on cards; gfx942 is both (MI300X, MI300A)
_GCN = (801, 803, 900, 904, 906, 908, "90a", 950)
_RDNA = (1010, 1011, 1012, 1030, 1031, 1032, 1034, 1100, 1101, 1102, 1200, 1201)
CARDS = frozenset(f"gfx{version}" for version in (*_GCN, *_RDNA))


@dataclass(frozen=True, slots=True)
class KfdNode:
    """One GPU of the topology. `pool` is the memory the driver offers for compute, `used` what its processes hold."""

    gpu_id: int | None
    arch: str
    pci: str | None
    render_minor: int | None
    compute_units: int | None
    unique_id: int | None
    device_id: int | None
    has_cpu: bool
    pool: int | None
    used: int | None


def gfx_name(version: int) -> str | None:
    """`gfx1151` of KFD's gfx_target_version 110501: two decimal digits each for minor and stepping.

    Minor and stepping are written as one hexadecimal digit each (90010 -> gfx90a).
    """
    major, minor, stepping = version // 10000, version // 100 % 100, version % 100
    if not 0 < major < 100 or minor > 15 or stepping > 15:
        return None
    return f"gfx{major}{minor:x}{stepping:x}"


def pci_address(location: int, domain: int = 0) -> str | None:
    """`0000:c5:00.0` of KFD's location_id (bus << 8 | device << 3 | function)."""
    if not 0 <= location <= 0xFFFF or not 0 <= domain <= 0xFFFFFFFF:
        return None
    return f"{domain:04x}:{location >> 8:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"


def read_topology(roots: Roots) -> tuple[KfdNode, ...]:
    """The GPU nodes in the order of the topology, which is HIP's order."""
    base = roots.sys / "class/kfd/kfd"
    used = used_by_processes(roots)
    nodes = []
    for folder in children(base / "topology/nodes"):
        fields = key_values(read_text(folder / "properties"))
        version = number(fields.get("gfx_target_version"))
        arch = gfx_name(version) if version else None
        if arch is None or not number(fields.get("simd_count")):
            continue  # a processor's node, or one this process may not read
        nodes.append(_node(folder, fields, arch, used))
    return tuple(nodes)


def processes(roots: Roots) -> Mapping[int, Mapping[int, int]]:
    """Bytes by process and gpu_id (`proc/<pid>/vram_<gpu_id>`); on APUs this counts GTT too.

    A process that has the compute device open is there also when it holds nothing.
    """
    found: dict[int, dict[int, int]] = {}
    for folder in children(roots.sys / "class/kfd/kfd/proc"):
        pid = number(folder.name) if folder.name.isdecimal() else None
        if pid is None:
            continue
        for path in children(folder):
            match = _VRAM_FILE.fullmatch(path.name)
            size = known(read_number(path)) if match else None
            if match and size is not None:
                found.setdefault(pid, {})[int(match.group(1))] = size
    return found


def used_by_processes(roots: Roots) -> Mapping[int, int]:
    """Bytes that all compute processes hold, by gpu_id."""
    totals: dict[int, int] = {}
    for sizes in processes(roots).values():
        for gpu, size in sizes.items():
            totals[gpu] = totals.get(gpu, 0) + size
    return totals


def _node(folder: Path, fields: Mapping[str, str], arch: str, used: Mapping[int, int]) -> KfdNode:
    def field(name: str) -> int | None:
        return known(number(fields.get(name)))

    gpu_id = known(read_number(folder / "gpu_id"))
    location = field("location_id")
    simds, per_unit = field("simd_count"), field("simd_per_cu") or 2
    return KfdNode(
        gpu_id=gpu_id,
        arch=arch,
        pci=None if location is None else pci_address(location, field("domain") or 0),
        render_minor=field("drm_render_minor") or None,
        compute_units=simds // per_unit if simds else None,
        unique_id=field("unique_id") or None,
        device_id=field("device_id"),
        has_cpu=bool(field("cpu_cores_count")),
        pool=_largest_bank(folder),
        used=None if gpu_id is None else used.get(gpu_id, 0),
    )


def _largest_bank(folder: Path) -> int | None:
    sizes = [
        known(number(key_values(read_text(bank / "properties")).get("size_in_bytes")))
        for bank in children(folder / "mem_banks")
    ]
    return max((size for size in sizes if size), default=None)
