"""An NVIDIA GPU without the toolkit that describes it to containers."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor import fixes
from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "toolkit_missing"
SEVERITY = Severity.PROBLEM
NEEDS = ("facts", "cdi", "toolkit")
SOURCE = (
    "nvidia-ctk writes the CDI specification and its hook runs in every container (NVIDIA "
    "container toolkit documentation)"
)


def check(machine: Machine) -> Iterator[Fault]:
    gpus = machine.gpus("nvidia")
    if not gpus or machine.toolkit.path is not None or machine.cdi.of("nvidia.com/gpu"):
        return
    yield Fault(
        "there is an NVIDIA GPU, but no nvidia-ctk: containers cannot be given it",
        {"gpus": [gpu.pci for gpu in gpus]},
        (
            fixes.install(machine.system, "nvidia-container-toolkit"),
            "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
        ),
    )
