"""One reading of a GPU while engines run, whoever made it: what changes from second to second.

Unknown is None: a field that the driver does not have, or that failed this time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that uses the GPU: `pid` is the host's, `memory` bytes, `kind` is `compute` or `graphics`.

    One that does both is `compute`: its memory is the same memory, counted once.
    """

    pid: int
    memory: int | None
    kind: str


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU at one moment. Bytes, percent, degrees Celsius, watts.

    `memory_used` is what processes use; what the driver keeps for itself is `memory_reserved`, where
    the driver tells them apart (else it is in `memory_used`). `memory_free` is what an engine may
    still take: on unified memory what the host has available less its reserve.
    `memory_utilisation` is how busy the memory's controller is, not how full the memory.
    `throttled_by` names what keeps the clocks low (empty: nothing), `idle` whether that is only that
    there is nothing to do. The PCIe link falls to its lowest generation when idle: nothing is wrong then.
    """

    pci: str
    memory_total: int | None = None
    memory_used: int | None = None
    memory_reserved: int | None = None
    memory_free: int | None = None
    utilisation: int | None = None
    memory_utilisation: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    clock_mhz: int | None = None
    throttled_by: tuple[str, ...] | None = None
    idle: bool | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    processes: tuple[GpuProcess, ...] | None = None
    ecc: Mapping[str, int] = field(default_factory=dict)
    """What ECC memory reports, where there is any: `uncorrected` errors since the driver was loaded,
    `remap_pending`, `remap_failed` and `retire_pending` (1: a reset is wanted, or rows ran out)."""
