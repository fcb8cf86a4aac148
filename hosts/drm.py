"""AMD cards as the kernel's display driver lists them below /sys/class/drm: memory, sensors, render node."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from hosts import pci
from hosts.reading import children, key_values, known, read_number, read_text
from hosts.roots import Roots

_CARD = re.compile(r"card\d+")  # not the connectors: card1-DP-1
_RENDER = re.compile(r"renderD(\d+)")


@dataclass(frozen=True, slots=True)
class DrmCard:
    """One AMD card. Sizes are bytes; `power` and the limit watts."""

    card: str
    folder: Path
    pci: str | None
    device_id: int | None
    revision: int | None
    product: str | None
    render_minor: int | None


@dataclass(frozen=True, slots=True)
class DrmMemory:
    """The driver's two pools: VRAM (on an APU the firmware's carve-out) and GTT (system memory)."""

    vram_total: int | None = None
    vram_used: int | None = None
    gtt_total: int | None = None
    gtt_used: int | None = None


@dataclass(frozen=True, slots=True)
class DrmSensors:
    """What it does at the moment: percent, degrees Celsius, watts."""

    busy: int | None = None
    temperature: float | None = None
    power: float | None = None
    power_limit: float | None = None


def read_cards(roots: Roots) -> tuple[DrmCard, ...]:
    """The AMD cards in the order of their numbers; the first is often card1."""
    found = []
    for entry in children(roots.sys / "class/drm"):
        device = entry / "device"
        if _CARD.fullmatch(entry.name) and read_number(device / "vendor") == pci.AMD:
            found.append(
                DrmCard(
                    card=entry.name,
                    folder=device,
                    pci=_address(device),
                    device_id=known(read_number(device / "device")),
                    revision=known(read_number(device / "revision")),
                    product=read_text(device / "product_name", 1024),
                    render_minor=_render_minor(device),
                )
            )
    return tuple(found)


def read_memory(device: Path) -> DrmMemory:
    """The pools of a card's `device` folder. These are the driver's counters: the hardware is not asked."""
    sizes = [
        known(read_number(device / f"mem_info_{name}")) for name in ("vram_total", "vram_used", "gtt_total", "gtt_used")
    ]
    return DrmMemory(*sizes)


def read_sensors(device: Path) -> DrmSensors:
    """Sensors, which ask the firmware and may hang with it (see `hosts.bounded`)."""
    percent = known(read_number(device / "gpu_busy_percent"))
    busy = percent if percent is not None and percent <= 100 else None
    for hwmon in children(device / "hwmon"):
        if read_text(hwmon / "name", 64) in {"amdgpu", None}:
            # an APU has one of the two power files, which one depends on the kernel
            power = read_number(hwmon / "power1_average") or read_number(hwmon / "power1_input")
            return DrmSensors(
                busy=busy,
                temperature=_scaled(read_number(hwmon / "temp1_input"), 1000),
                power=_scaled(power, 1_000_000),
                power_limit=_scaled(read_number(hwmon / "power1_cap") or None, 1_000_000),
            )
    return DrmSensors(busy)


def _address(device: Path) -> str | None:
    said = pci.address(key_values(read_text(device / "uevent"), "=").get("PCI_SLOT_NAME"))
    return said or pci.address(pci.link_name(device))


def _render_minor(device: Path) -> int | None:
    for entry in children(device / "drm"):
        if match := _RENDER.fullmatch(entry.name):
            return int(match.group(1))
    return None


def _scaled(value: int | None, by: int) -> float | None:
    return None if value is None or value < 0 else value / by
