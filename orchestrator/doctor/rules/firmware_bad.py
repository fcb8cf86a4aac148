"""Firmware under which an AMD GPU is known not to compute."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor import fixes
from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "firmware_bad"
SEVERITY = Severity.PROBLEM
NEEDS = ("facts",)
SUPERSEDES = ("firmware_bad", "firmware_suspect")
SOURCE = (
    "linux-firmware 20251125 has MES 0x83, which breaks ROCm; 0x80 is good (kyuz0 Strix Halo "
    "toolboxes); hard hangs with 0x86 (ROCm issue 6165)"
)


def check(machine: Machine) -> Iterator[Fault]:
    for problem in machine.problems("firmware_bad", "firmware_suspect"):
        evidence = {
            gpu.pci: {"arch": gpu.arch, "mes": gpu.details.get("mes_version"), "firmware": gpu.details.get("firmware")}
            for gpu in machine.gpus("amd")
        }
        bad = problem.code == CODE
        yield Fault(
            problem.detail,
            evidence,
            (
                fixes.upgrade(
                    machine.system,
                    "firmware-amd-graphics",
                    fedora="amd-gpu-firmware",
                    arch="linux-firmware",
                    suse="kernel-firmware-amdgpu",
                ),
                fixes.initramfs(machine.system),
                "systemctl reboot",
            ),
            None if bad else Severity.WARNING,
            problem.code,
        )
