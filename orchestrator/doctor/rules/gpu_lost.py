"""A GPU that is gone from the bus."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "gpu_lost"
SEVERITY = Severity.PROBLEM
NEEDS = ("facts",)
SUPERSEDES = ("gpu_lost",)
SOURCE = (
    "NVML errors 15, 16 and 28, XID 79 and 154: nothing but a reboot brings it back, and it "
    "may come without an XID (open-gpu-kernel-modules#1134)"
)


def check(machine: Machine) -> Iterator[Fault]:
    for problem in machine.problems("gpu_lost"):
        gpus = [gpu.pci for gpu in machine.gpus("nvidia") if gpu.details.get("health") not in {None, "ok"}]
        fix = ("nvidia-smi --gpu-reset",) if "reset" in problem.detail.lower() else ()
        yield Fault(problem.detail, {"gpus": gpus}, ("dmesg | grep -iE 'xid|nvrm'", *fix, "systemctl reboot"))
