"""A desktop that takes memory of a GPU."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import GpuProcess, Machine

CODE = "desktop_on_gpu"
SEVERITY = Severity.WARNING
NEEDS = ("processes", "facts")
SOURCE = "what a desktop holds is not there for models, and it grows while they run; a server needs none"
LEAST = 64 * 2**20
"""Bytes: a login screen alone is no desktop."""


def check(machine: Machine) -> Iterator[Fault]:
    for gpu in machine.facts.accelerators:
        mine = [p for p in machine.processes if p.desktop and p.pci == gpu.pci]
        total = sum(p.memory or 0 for p in mine)
        if not mine or total < LEAST:
            continue
        names = ", ".join(f"{p.name} ({(p.memory or 0) / 2**20:.0f} MiB)" for p in _largest(mine)[:4])
        yield Fault(
            f"a desktop holds {total / 2**20:.0f} MiB of GPU {gpu.pci}: {names}",
            {"pci": gpu.pci, "bytes": total, "processes": {f"{p.name}/{p.pid}": p.memory for p in _largest(mine)[:20]}},
            ("systemctl set-default multi-user.target", "systemctl isolate multi-user.target"),
        )


def _largest(processes: list[GpuProcess]) -> list[GpuProcess]:
    return sorted(processes, key=lambda p: -(p.memory or 0))
