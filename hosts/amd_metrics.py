"""amdgpu's `gpu_metrics`: a table from the GPU's firmware, for what slows it down and at what clock it runs.

Its layout depends on the two revisions in its head (the kernel's kgd_pp_interface.h). Read are 3.0,
which Strix Halo has, and 1.3, which RDNA cards have; of another nothing is taken.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

POWER = "software_power_cap"
THERMAL = "software_thermal"
HOT = "hardware_thermal"
_RESIDENCIES = ((HOT, 228), (POWER, 232), (POWER, 236), (POWER, 240), (THERMAL, 244), (THERMAL, 248), (THERMAL, 252))
"""Counters that grow while the firmware holds back: PROCHOT, SPL, FPPT, SPPT, core, graphics and SoC temperature."""
_BITS = ((POWER, 0, 32), (THERMAL, 32, 46), (HOT, 46, 48))
"""Of the status that is the same for all cards: power and current, temperatures, PROCHOT (name, first bit, end)."""
_NONE16, _NONE32, _NONE64 = 0xFFFF, 0xFFFFFFFF, 2**64 - 1


@dataclass(frozen=True, slots=True)
class Metrics:
    """`status`: what holds it back now, where the firmware says so. `held_back`: counters by name, to be compared
    with those of the sample before. `clock_mhz` of the graphics core."""

    clock_mhz: int | None = None
    status: tuple[str, ...] | None = None
    held_back: Mapping[str, int] = field(default_factory=dict)


def parse(raw: bytes | None) -> Metrics:
    """The table; an empty one for a table that is cut short, or of another layout."""
    if raw is None or len(raw) < 4:
        return Metrics()
    size, layout, content = struct.unpack_from("<HBB", raw)
    if len(raw) < size:
        return Metrics()
    if (layout, content) == (3, 0) and size >= 260:
        counters: dict[str, int] = {}
        for name, offset in _RESIDENCIES:
            (value,) = struct.unpack_from("<I", raw, offset)
            if value != _NONE32:
                counters[name] = counters.get(name, 0) + value
        return Metrics(_mhz(raw, 174), None, counters)
    if (layout, content) == (1, 3) and size >= 120:
        (status,) = struct.unpack_from("<Q", raw, 112)
        names = None if status == _NONE64 else tuple(n for n, low, end in _BITS if status & (1 << end) - (1 << low))
        return Metrics(_mhz(raw, 54), names)
    return Metrics()


def throttled(now: Metrics, before: Metrics | None) -> tuple[str, ...] | None:
    """What held the GPU back since the sample before; None where that cannot be known."""
    if now.status is not None:
        return now.status
    if before is None or not now.held_back or now.held_back.keys() != before.held_back.keys():
        return None
    return tuple(name for name, count in now.held_back.items() if count > before.held_back[name])


def _mhz(raw: bytes, offset: int) -> int | None:
    (value,) = struct.unpack_from("<H", raw, offset)
    return None if value == _NONE16 else int(value)
