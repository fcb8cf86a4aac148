"""What the probe found and no rule of its own explains."""

from __future__ import annotations

import re
from collections.abc import Iterator

from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine
from orchestrator.doctor.rules import superseded

CODE = "probe"
SEVERITY = Severity.WARNING
NEEDS = ("facts",)
SOURCE = "`outrider probe`"
ABSENT = frozenset({"no_device", "amd_smi_missing"})
"""A vendor that has no GPU here is no fault, and neither is a host without ROCm: images bring theirs."""
PROBLEMS = frozenset(
    {
        "nvml_timeout",
        "nvml_crashed",
        "nvml_failed",
        "nvml_unknown",
        "no_permission",
        "kfd_missing",
        "amd_sysfs_timeout",
        "gpu_locked",
    }
)
COMMANDS = {
    "carve_out_large": ("systemctl reboot --firmware-setup",),
    "kfd_missing": ("dmesg | grep -i kfd", "modprobe amdgpu"),
    "nvml_timeout": ("dmesg | grep -E 'NVRM|Xid'", "systemctl reboot"),
    "nvml_crashed": ("nvidia-smi", "dmesg | grep -E 'NVRM|Xid'"),
    "amd_sysfs_timeout": ("dmesg | grep amdgpu", "systemctl reboot"),
    "no_permission": ("ls -l /dev/nvidia*",),
    "driver_too_old": ("nvidia-smi",),
}


def check(machine: Machine) -> Iterator[Fault]:
    explained = superseded()
    for problem in machine.facts.problems:
        if problem.code in explained or problem.code in ABSENT:
            continue
        commands = tuple(re.findall(r"`([^`]+)`", problem.hint or ""))
        yield Fault(
            problem.detail,
            {"vendor": problem.vendor, "hint": problem.hint},
            COMMANDS.get(problem.code) or commands or ("outrider probe",),
            Severity.PROBLEM if problem.code in PROBLEMS else None,
            problem.code,
        )
