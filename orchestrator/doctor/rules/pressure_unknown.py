"""A unified-memory host whose kernel does not tell of memory pressure."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor import fixes
from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "pressure_unknown"
SEVERITY = Severity.WARNING
NEEDS = ("facts", "kernel")
SOURCE = (
    "the guard against a host that freezes reads /proc/pressure/memory; some kernels have it off until psi=1 (psi.rst)"
)


def check(machine: Machine) -> Iterator[Fault]:
    if machine.kernel.pressure is False and any(gpu.unified for gpu in machine.facts.accelerators):
        yield Fault(
            "the kernel does not tell of memory pressure: only available memory guards this host against a freeze",
            {"file": "/proc/pressure/memory", "psi": machine.kernel.given("psi")},
            fixes.kernel_argument(machine.system, add="psi=1"),
        )
