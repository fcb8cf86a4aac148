"""NVIDIA's old runtime hook beside CDI."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "legacy_hook"
SEVERITY = Severity.WARNING
NEEDS = ("toolkit", "facts", "cdi")
SOURCE = (
    "with the hook, `systemctl daemon-reload` cuts running containers off their GPU; with CDI "
    "it does not (container-toolkit#48, #1227)"
)


def check(machine: Machine) -> Iterator[Fault]:
    if machine.toolkit.hook is not None and machine.gpus("nvidia"):
        yield Fault(
            f"{machine.toolkit.hook} injects the GPU by NVIDIA's old hook: containers lose it at a daemon-reload",
            {"file": machine.toolkit.hook, "cdi_files": [file.path for file in machine.cdi.of("nvidia.com/gpu")]},
            (f"mv {machine.toolkit.hook} {machine.toolkit.hook}.off",),
        )
