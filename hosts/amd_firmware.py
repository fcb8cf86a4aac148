"""The firmware that an AMD GPU runs, and which of it is known to break compute.

The driver keeps the versions it loaded and tells them without asking the hardware: one file a
part below `fw_version`, or one table in debugfs, which only root may read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from hosts import drm, kfd
from hosts.facts import Platform, Problem
from hosts.reading import children, known, number, read_number, read_text
from hosts.roots import Roots
from hosts.versions import kernel_version

VENDOR = "amd"
GFX1151_KERNEL = (6, 18, 4)
"""Older kernels are unstable on gfx1151 (kyuz0's Strix Halo toolboxes, README)."""
BAD_MES = {0x83: "compute fails with it"}
"""gfx1151: the scheduler firmware (MES) of linux-firmware 20251125 (the same README)."""
SUSPECT_MES = {0x86: "machines froze without a message under vLLM"}
"""gfx1151: reported once (ROCm's issue 6165), so it is said and nothing is refused."""
BAD_PACKAGES = ("20251125",)
_MES_MASK = 0xFFF
"""The version's own bits; above them are flags of the interface."""
_FILE = re.compile(r"(\w+)_fw_version")
_LINE = re.compile(r"^(\w+) feature version: \S+, firmware version: (0x[0-9a-fA-F]{1,8})\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Firmware:
    """Versions by part (`mes`, `mec`, `sdma`, ...) as the driver numbers them, and the video BIOS."""

    parts: Mapping[str, int] = field(default_factory=dict)
    vbios: str | None = None

    @property
    def mes(self) -> int | None:
        """The version of the compute scheduler's firmware, such as 0x80."""
        found = self.parts.get("mes")
        return None if found is None else found & _MES_MASK

    def details(self) -> dict[str, object]:
        """For `Accelerator.details`: `firmware` (hexadecimal by part), `mes_version` (a number), `vbios`."""
        found: dict[str, object] = {}
        if self.parts:
            found["firmware"] = {name: f"{version:#010x}" for name, version in sorted(self.parts.items())}
        if self.mes is not None:
            found["mes_version"] = self.mes
        if self.vbios is not None:
            found["vbios"] = self.vbios
        return found


def read_firmware(roots: Roots, card: drm.DrmCard) -> Firmware:
    """What runs on one card. A part that is not there reports 0 and is left out."""
    parts: dict[str, int] = {}
    for path in children(card.folder / "fw_version"):
        version = known(read_number(path))
        if (match := _FILE.fullmatch(path.name)) and version:
            parts[match[1]] = version
    if "mes" not in parts:
        parts = {**_from_debugfs(roots, card), **parts}
    return Firmware(parts, read_text(card.folder / "vbios_version", 256))


def _from_debugfs(roots: Roots, card: drm.DrmCard) -> dict[str, int]:
    folder = roots.sys / "kernel/debug/dri"
    for name in filter(None, (card.pci, card.card.removeprefix("card"))):  # by address from kernel 6.14 on
        text = read_text(folder / name / "amdgpu_firmware_info", 65536)
        if text is not None:
            found = {part.lower(): number(version) for part, version in _LINE.findall(text)}
            return {part: version for part, version in found.items() if version}
    return {}


def known_bad(gpu: str, node: kfd.KfdNode | None, firmware: Firmware, kernel: str | None) -> list[Problem]:
    """Kernel and firmware under which this GPU is known not to work; only what a source says of its architecture."""
    if node is None or node.arch != "gfx1151":
        return []
    problems = []
    version = kernel_version(kernel)
    if version is not None and version < GFX1151_KERNEL:
        oldest = ".".join(str(part) for part in GFX1151_KERNEL)
        problems.append(
            Problem(
                "kernel_too_old",
                VENDOR,
                f"GPU {gpu}: kernel {kernel} is unstable on {node.arch}; it needs {oldest} or newer",
                f"install a kernel of {oldest} or newer and reboot (`uname -r` says which runs)",
            )
        )
    if firmware.mes in BAD_MES:
        detail = f"GPU {gpu}: MES firmware {firmware.mes:#x} is known to be bad: {BAD_MES[firmware.mes]}"
        problems.append(Problem("firmware_bad", VENDOR, detail, _FIRMWARE_HINT))
    elif firmware.mes in SUSPECT_MES:
        detail = f"GPU {gpu}: MES firmware {firmware.mes:#x}: {SUSPECT_MES[firmware.mes]}"
        problems.append(Problem("firmware_suspect", VENDOR, detail, _FIRMWARE_HINT))
    return problems


_FIRMWARE_HINT = "install another linux-firmware (MES 0x80 is good; 20251125 is bad), rebuild the initramfs, reboot"


def bad_package(platform: Platform, arch: str | None, mes: int | None) -> Problem | None:
    """The firmware package itself, where the driver does not say which version it loaded."""
    package = platform.linux_firmware or ""
    if arch != "gfx1151" or mes is not None or not any(bad in package for bad in BAD_PACKAGES):
        return None
    return Problem("firmware_bad", VENDOR, f"linux-firmware {package} breaks compute on {arch}", _FIRMWARE_HINT)
