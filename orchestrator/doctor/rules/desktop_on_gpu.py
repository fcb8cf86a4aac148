"""A desktop that takes memory of a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hosts.facts import Accelerator
from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "desktop_on_gpu"
SEVERITY = Severity.WARNING
NEEDS = ("facts",)
SOURCE = "what a desktop holds is not there for models, and it grows while they run; a server needs none"
LEAST = 64 * 2**20
"""Bytes: a login screen alone is no desktop."""


def check(machine: Machine) -> Iterator[Fault]:
    for gpu in machine.facts.accelerators:
        mine = [one for one in users(gpu) if one.get("desktop") is True]
        total = sum(held(one) for one in mine)
        if not mine or total < LEAST:
            continue
        names = ", ".join(f"{one.get('name')} ({held(one) / 2**20:.0f} MiB)" for one in mine[:4])
        yield Fault(
            f"a desktop holds {total / 2**20:.0f} MiB of GPU {gpu.pci}: {names}",
            {
                "pci": gpu.pci,
                "bytes": total,
                "processes": {f"{one.get('name')}/{one.get('pid')}": held(one) for one in mine},
            },
            ("systemctl set-default multi-user.target", "systemctl isolate multi-user.target"),
        )


def users(gpu: Accelerator) -> list[Mapping[str, Any]]:
    """The processes on a GPU as the probe names them, the largest first."""
    listed = gpu.details.get("processes")
    found = [one for one in listed if isinstance(one, Mapping)] if isinstance(listed, list | tuple) else []
    return sorted(found, key=lambda one: -held(one))


def held(user: Mapping[str, Any]) -> int:
    """Bytes of the GPU; 0 where nobody says."""
    memory = user.get("memory")
    return memory if isinstance(memory, int) else 0
