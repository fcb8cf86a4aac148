"""A file in a CDI folder that no container engine can use."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine
from orchestrator.doctor.rules.cdi_missing import generate

CODE = "cdi_broken"
SEVERITY = Severity.WARNING
NEEDS = ("cdi", "toolkit")
SOURCE = "Podman skips a file that it cannot parse without a word, and then knows none of its devices"


def check(machine: Machine) -> Iterator[Fault]:
    for file in machine.cdi.files:
        if file.broken is None:
            continue
        nvidia = "nvidia" in file.path and machine.toolkit.path is not None
        mend = (generate(machine),) if machine.toolkit.refresh else (f"nvidia-ctk cdi generate --output={file.path}",)
        yield Fault(
            f"{file.path}: {file.broken}",
            {"file": file.path, "mode": None if file.mode is None else f"{file.mode:04o}"},
            mend if nvidia else (f"rm {file.path}",),
            Severity.PROBLEM if nvidia and not machine.cdi.of("nvidia.com/gpu") else None,
        )
