"""Strict accounting of memory, which GPU runtimes cannot live with."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor import fixes
from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "overcommit"
SEVERITY = Severity.PROBLEM
NEEDS = ("kernel",)
SOURCE = (
    "CUDA and HIP reserve address space many times the size of memory, which "
    "vm.overcommit_memory=2 counts as taken (vm.rst)"
)


def check(machine: Machine) -> Iterator[Fault]:
    if machine.kernel.overcommit == 2:
        yield Fault(
            "vm.overcommit_memory is 2: engines fail when they reserve address space",
            {"overcommit_memory": 2},
            fixes.sysctl("vm.overcommit_memory", 0),
        )
