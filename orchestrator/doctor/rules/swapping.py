"""A unified-memory host that swaps to a disk."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "swapping"
SEVERITY = Severity.WARNING
NEEDS = ("kernel", "facts")
SOURCE = (
    "a model that reaches into swap makes the whole host stand still (kyuz0 vLLM "
    "toolboxes#65); compressed swap in memory does not count"
)
LEAST = 2**30


def check(machine: Machine) -> Iterator[Fault]:
    if not any(gpu.unified for gpu in machine.facts.accelerators):
        return
    disks = [swap for swap in machine.kernel.swaps if not swap.compressed]
    used = sum(swap.used for swap in disks)
    if used >= LEAST:
        yield Fault(
            f"{used / 2**30:.1f} GiB are swapped out to a disk, and the GPU shares this memory",
            {"swaps": {swap.name: {"size": swap.size, "used": swap.used} for swap in disks}},
            ("swapoff -a && swapon -a", "sysctl -w vm.swappiness=1"),
        )
