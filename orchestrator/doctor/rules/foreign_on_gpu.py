"""A program beside the engines that holds much of a GPU."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine
from orchestrator.doctor.rules.desktop_on_gpu import held, users

CODE = "foreign_on_gpu"
SEVERITY = Severity.WARNING
NEEDS = ("facts",)
SOURCE = "what others hold is never counted as free, and models are planned into the rest (GPUStack #3034: oversold)"
LEAST = 2**30


def check(machine: Machine) -> Iterator[Fault]:
    for gpu in machine.facts.accelerators:
        for one in users(gpu):
            # engines, Outrider's and others', are in containers
            if one.get("container") is None and one.get("desktop") is not True and held(one) >= LEAST:
                name, pid = one.get("name") or "a process", one.get("pid")
                yield Fault(
                    f"{name} holds {held(one) / 2**30:.1f} GiB of GPU {gpu.pci}, and is no engine",
                    {"pci": gpu.pci, "pid": pid, "name": one.get("name"), "bytes": held(one)},
                    (f"systemctl status {pid}", f"kill {pid}"),
                )
