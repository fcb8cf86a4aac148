"""Containers cannot be given the GPU: no CDI specification names it."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "cdi_missing"
SEVERITY = Severity.PROBLEM
NEEDS = ("facts", "cdi", "toolkit")
SUPERSEDES = ("cdi_missing",)
SOURCE = (
    "Podman resolves nvidia.com/gpu=N by a CDI specification, which nvidia-ctk writes (NVIDIA "
    "container toolkit documentation)"
)


def check(machine: Machine) -> Iterator[Fault]:
    if machine.toolkit.path is None or any(file.broken for file in machine.cdi.files):
        return  # said by toolkit_missing and cdi_broken
    for problem in machine.problems("cdi_missing"):
        yield Fault(
            problem.detail,
            {"folders": sorted({file.folder for file in machine.cdi.files}), "toolkit": machine.toolkit.version},
            (generate(machine),),
        )


def generate(machine: Machine) -> str:
    """The command that writes the specification anew, where the one that counts is."""
    if machine.toolkit.refresh:
        return "systemctl restart nvidia-cdi-refresh.service"
    return "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
