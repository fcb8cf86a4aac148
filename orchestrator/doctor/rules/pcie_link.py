"""A GPU that computes over fewer lanes than it has."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "pcie_link"
SEVERITY = Severity.WARNING
NEEDS = ("facts",)
SOURCE = (
    "an idle GPU lowers its link, so only a busy one is judged, and only by its width: a bad "
    "seat or riser shows in lanes"
)
BUSY = 20
"""Percent."""


def check(machine: Machine) -> Iterator[Fault]:
    for gpu in machine.facts.accelerators:
        width, most = (gpu.details.get(key) for key in ("pcie_width_now", "pcie_width"))
        busy = (gpu.utilisation or 0) >= BUSY
        if busy and isinstance(width, int) and isinstance(most, int) and 0 < width < most // 2:
            yield Fault(
                f"GPU {gpu.pci} computes over {width} of its {most} PCIe lanes",
                {"pci": gpu.pci, "width": width, "width_max": most, "utilisation": gpu.utilisation},
                (f"lspci -vv -s {gpu.pci} | grep -E 'LnkCap|LnkSta'",),
            )
