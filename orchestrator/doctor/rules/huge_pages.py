"""Transparent huge pages are off."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor import fixes
from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "huge_pages"
SEVERITY = Severity.WARNING
NEEDS = ("kernel",)
SOURCE = (
    "loading and computing in system memory walk four-KiB pages then: slower on the CPU and on APUs (transhuge.rst)"
)


def check(machine: Machine) -> Iterator[Fault]:
    if machine.kernel.huge_pages == "never":
        yield Fault(
            "transparent huge pages are off: engines that compute in system memory are slower",
            {"enabled": "never"},
            (
                "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
                *fixes.kernel_argument(machine.system, add="transparent_hugepage=madvise"),
            ),
        )
