"""AMD GPUs from the kernel's files alone: no ROCm on the host is needed, and no library's totals are trusted.

amdsmi and HIP disagree with each other and with the driver about an APU's memory
from release to release; these files are what the driver itself decides by.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from hosts import amd_firmware, drm, kfd, pci
from hosts.facts import Accelerator, Memory, Platform, Problem
from hosts.found import Found
from hosts.reading import children, read_number, read_text
from hosts.roots import Roots
from hosts.system import GIB, reserve

VENDOR = "amd"
TIMEOUT = "amd_sysfs_timeout"
"""The code of the problem that its files gave no answer in time."""
LARGE_CARVE_OUT = 8 * GIB
"""From here on a carve-out is worth a word: firmware sets aside 0.5 to 4 GiB when told to take the least."""
_PAGE = 4096
_IN_CPU_NAME = re.compile(r"\bw/\s*(Radeon\b.*\S)")


@dataclass(frozen=True, slots=True)
class Budget:
    """What engines may use of a GPU's memory, in bytes. `pool`: `vram` or `gtt`."""

    pool: str
    total: int
    used: int | None
    free: int | None
    reserve: int
    usable: int


@dataclass(frozen=True, slots=True)
class _Gpu:
    """The two halves of one GPU, either of which may be missing."""

    index: int
    node: kfd.KfdNode | None
    card: drm.DrmCard | None
    memory: drm.DrmMemory
    sensors: drm.DrmSensors
    firmware: amd_firmware.Firmware = field(default_factory=amd_firmware.Firmware)

    @classmethod
    def read(
        cls, roots: Roots, index: int, node: kfd.KfdNode | None, card: drm.DrmCard | None, *, sensors: bool
    ) -> _Gpu:
        if card is None:
            pool = node.pool if node is not None else None
            from_system = node is not None and (node.has_cpu or node.arch in kfd.APUS)
            memory = drm.DrmMemory(gtt_total=pool) if from_system else drm.DrmMemory(vram_total=pool)
            return cls(index, node, None, memory, drm.DrmSensors())
        reading = drm.read_sensors(card.folder) if sensors else drm.DrmSensors()
        firmware = amd_firmware.read_firmware(roots, card)
        return cls(index, node, card, drm.read_memory(card.folder), reading, firmware)

    @property
    def address(self) -> str:
        said = (self.node.pci if self.node is not None else None) or (self.card.pci if self.card is not None else None)
        return said or f"{VENDOR}-{self.index}"


def is_apu(node: kfd.KfdNode | None, memory: drm.DrmMemory) -> bool:
    """Whether the GPU lives off system memory.

    By what it is where that is known; the ratio of the pools only for a GPU that
    is in neither list, because a small card in a big machine has it as well.
    """
    if node is not None:
        if node.has_cpu or node.arch in kfd.APUS:
            return True
        if node.arch in kfd.CARDS:
            return False
    vram, gtt = memory.vram_total, memory.gtt_total
    if node is not None and node.pool and vram is not None and node.pool == gtt and gtt > vram:
        return True  # the driver itself offers the system memory for compute
    return vram is not None and gtt is not None and vram < 8 * GIB and gtt >= 4 * vram


def budget(
    *, unified: bool, memory: drm.DrmMemory, kfd_used: int | None, system: Memory, growth: int | None = None
) -> Budget | None:
    """The pool that compute allocates from, and what is left of it.

    On an APU the driver takes the larger pool, never both. Its GTT is system
    memory, so the host's reserve and what others took of it count; a carve-out
    that is larger than GTT is not part of MemTotal and stands alone. `used` is the
    largest of the driver's counter, the sum over compute processes and `growth` (see
    `hosts.amd_growth`): on some kernels the counters miss HIP allocations.
    """
    vram, gtt = memory.vram_total or 0, memory.gtt_total or 0
    from_gtt = unified and gtt >= vram
    total = gtt if from_gtt else vram
    if not total:
        return None
    counters = [c for c in (memory.gtt_used if from_gtt else memory.vram_used, kfd_used) if c is not None]
    if from_gtt and growth is not None:
        counters.append(growth)
    used = max(counters, default=None)
    left = None if used is None else max(total - used, 0)
    if not from_gtt:
        return Budget("vram", total, used, left, 0, total)
    kept = reserve(system.total)
    available = max(system.available - kept, 0)
    return Budget(
        pool="gtt",
        total=total,
        used=used,
        free=available if left is None else min(left, available),
        reserve=kept,
        usable=min(total, max(system.total - kept, 0)),
    )


def has_card(roots: Roots) -> bool:
    """Whether there is an AMD DRM card, whatever else it says."""
    return any(read_number(entry / "device/vendor") == pci.AMD for entry in children(roots.sys / "class/drm"))


def read(roots: Roots, system: Memory, cpu_model: str | None = None, *, sensors: bool = True) -> Found:
    """Every AMD GPU that the kernel drives, in the order of KFD's topology, then those without compute.

    Without `sensors` nothing is read that asks the GPU's firmware.
    """
    cards = drm.read_cards(roots)
    taken: set[str] = set()
    pairs: list[tuple[kfd.KfdNode | None, drm.DrmCard | None]] = []
    for node in kfd.read_topology(roots):
        card = _card_of(node, cards)
        if card is not None:
            taken.add(card.card)
        pairs.append((node, card))
    pairs.extend((None, card) for card in cards if card.card not in taken)
    accelerators: list[Accelerator] = []
    problems: list[Problem] = []
    for index, (one, card) in enumerate(pairs):
        gpu, about = _accelerator(roots, _Gpu.read(roots, index, one, card, sensors=sensors), system, cpu_model)
        accelerators.append(gpu)
        problems.extend(about)
    return Found(tuple(accelerators), tuple(problems))


def _card_of(node: kfd.KfdNode, cards: Sequence[drm.DrmCard]) -> drm.DrmCard | None:
    for card in cards:
        if node.pci is not None and card.pci == node.pci:
            return card
    for card in cards:  # trees in which one of the two does not say its address
        if node.render_minor is not None and card.render_minor == node.render_minor:
            return card
    unnamed = [card for card in cards if card.pci is None or node.pci is None]
    same = [card for card in unnamed if card.device_id == node.device_id]
    return same[0] if len(same) == 1 else None


def _accelerator(roots: Roots, parts: _Gpu, system: Memory, cpu_model: str | None) -> tuple[Accelerator, list[Problem]]:
    node, card, memory, sensors = parts.node, parts.card, parts.memory, parts.sensors
    unified = is_apu(node, memory)
    room = budget(unified=unified, memory=memory, kfd_used=node.used if node is not None else None, system=system)
    where = parts.address
    devices, groups, problems = _nodes(roots, where, node, card)
    if room is not None:
        problems.extend(_memory_problems(where, room, system))
        if unified:
            problems.extend(_carve_out_problem(where, room, memory))
    kernel = read_text(roots.proc / "sys/kernel/osrelease", 256)
    problems.extend(amd_firmware.known_bad(where, node, parts.firmware, kernel))
    unique = node.unique_id if node is not None else None
    gpu = Accelerator(
        vendor=VENDOR,
        name=(card.product if card is not None else None) or (_name_in(cpu_model) if unified else None),
        arch=node.arch if node is not None else None,
        pci=where,
        # an APU has no serial number: the identifier that amdsmi derives is the same on every machine
        uuid=f"GPU-{unique:016x}" if unique else None,
        memory_total=room.total if room is not None else None,
        memory_free=room.free if room is not None else None,
        unified=unified,
        index=parts.index,
        driver=read_text(roots.sys / "module/amdgpu/version", 256) or kernel,
        compute_units=node.compute_units if node is not None else None,
        utilisation=sensors.busy,
        temperature_c=sensors.temperature,
        power_w=sensors.power,
        power_limit_w=sensors.power_limit,
        devices=devices,
        groups=groups,
        details=_details(parts, room),
    )
    return gpu, problems


def _name_in(cpu_model: str | None) -> str | None:
    """An APU's own name, which AMD puts into the processor's: `... MAX+ 395 w/ Radeon 8060S`."""
    match = _IN_CPU_NAME.search(cpu_model or "")
    return f"AMD {match.group(1)}" if match else None


def _details(parts: _Gpu, room: Budget | None) -> dict[str, object]:
    node, card, memory = parts.node, parts.card, parts.memory
    details: dict[str, object | None] = {
        "health": "ok",
        "card": card.card if card is not None else None,
        "device_id": f"0x{card.device_id:04x}" if card is not None and card.device_id is not None else None,
        "revision": f"0x{card.revision:02x}" if card is not None and card.revision is not None else None,
        "gpu_id": node.gpu_id if node is not None else None,
        "kfd_pool": node.pool if node is not None else None,
        "kfd_used": node.used if node is not None else None,
    }
    if card is not None:
        details |= {
            "vram_total": memory.vram_total,
            "vram_used": memory.vram_used,
            "gtt_total": memory.gtt_total,
            "gtt_used": memory.gtt_used,
        }
    if room is not None:
        details |= {"pool": room.pool, "memory_used": room.used, "reserve": room.reserve, "usable": room.usable}
    details |= parts.firmware.details()
    return {key: value for key, value in details.items() if value is not None}


def _nodes(
    roots: Roots, where: str, node: kfd.KfdNode | None, card: drm.DrmCard | None
) -> tuple[tuple[str, ...], tuple[int, ...], list[Problem]]:
    """The device nodes a container needs, and the groups that own them.

    Access by this process says nothing about the container's: only existence and
    owner count. Group 0 is left out, for it would give a container more than the node.
    """
    minor = (node.render_minor if node is not None else None) or (card.render_minor if card is not None else None)
    wanted = [*(["kfd"] if node is not None else []), *([f"dri/renderD{minor}"] if minor is not None else [])]
    problems = []
    if node is None:
        detail = f"GPU {where} is no compute device for the kernel (KFD): only Vulkan can use it"
        problems.append(
            Problem("kfd_missing", VENDOR, detail, "check `dmesg | grep kfd` and the kernel's CONFIG_HSA_AMD")
        )
    if minor is None:
        detail = f"GPU {where} has no render node"
        problems.append(Problem("device_node_missing", VENDOR, detail, "check `ls -l /dev/dri`"))
    devices, groups = [], set()
    for name in wanted:
        try:
            groups.add(os.stat(roots.dev / name).st_gid)
        except OSError as error:
            detail = f"/dev/{name} of GPU {where}: {error.strerror}"
            problems.append(
                Problem("device_node_missing", VENDOR, detail, "check that amdgpu is loaded and udev has run")
            )
        else:
            devices.append(f"/dev/{name}")
    return tuple(devices), tuple(sorted(groups - {0})), problems


def _memory_problems(where: str, room: Budget, system: Memory) -> list[Problem]:
    if room.pool != "gtt":
        return []
    problems = []
    pages = max(system.total - room.reserve, 0) // _PAGE
    hint = f"kernel parameter ttm.pages_limit={pages} gives all but the host's reserve; carve out least in the firmware"
    if room.total > system.total:
        detail = (
            f"GPU {where}: the GTT ceiling ({_gib(room.total)}) is above the machine's memory ({_gib(system.total)})"
        )
        problems.append(Problem("gtt_above_memory", VENDOR, detail, hint))
    elif room.total * 100 <= system.total * 60:  # the kernel's default is half
        detail = f"GPU {where}: the GTT ceiling is {_gib(room.total)} of {_gib(system.total)} of memory"
        problems.append(Problem("gtt_limited", VENDOR, detail, hint))
    return problems


def _carve_out_problem(where: str, room: Budget, memory: drm.DrmMemory) -> list[Problem]:
    """Memory that the firmware sets aside serves engines only where it is the larger pool, and nobody else ever."""
    size = memory.vram_total
    if size is None or size < LARGE_CARVE_OUT:
        return []
    hint = "set the UMA frame buffer (or dedicated graphics memory) in the BIOS to its least, such as 512 MiB, "
    if room.pool == "vram":
        detail = f"GPU {where}: engines can only use the firmware's carve-out ({_gib(size)}), the larger of two pools"
        hint += "and give engines the rest by ttm.pages_limit"
    else:
        detail = f"GPU {where}: the firmware's carve-out ({_gib(size)}) is lost to engines: their pool is GTT"
        hint += "and raise ttm.pages_limit by as much"
    return [Problem("carve_out_large", VENDOR, detail, hint)]


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"


def kernel_parameters(platform: Platform) -> tuple[Problem, ...]:
    """Kernel parameters about GTT that do nothing, will go away, or did not take."""
    given = platform.kernel_parameters
    problems = []
    if "amdgpu.gtt_size" in given:
        detail = "the kernel ignores amdgpu.gtt_size (a misspelling)"
        problems.append(Problem("kernel_parameter", VENDOR, detail, "use ttm.pages_limit (4 KiB pages)"))
    if "amdgpu.gttsize" in given:
        detail = f"amdgpu.gttsize={given['amdgpu.gttsize']} is deprecated"
        problems.append(Problem("kernel_parameter", VENDOR, detail, "use ttm.pages_limit (4 KiB pages)"))
    asked, has = platform.ttm_pages_limit_boot, platform.ttm_pages_limit
    if asked is not None and has is not None and asked != has:
        detail = f"the kernel was started with a pages_limit of {asked}, but {platform.ttm_module} has {has}"
        hint = f"name the module that is in use: {platform.ttm_module}.pages_limit={asked}"
        problems.append(Problem("kernel_parameter", VENDOR, detail, hint))
    return tuple(problems)
