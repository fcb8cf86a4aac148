"""A Podman without what Outrider needs of it."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.catalogue.types import version_numbers
from orchestrator.doctor import fixes
from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "podman_old"
SEVERITY = Severity.PROBLEM
NEEDS = ("podman",)
SOURCE = "tested from 4.3.1 on; CDI names and the API used here are not in older ones"


def check(machine: Machine) -> Iterator[Fault]:
    version = version_numbers(machine.podman.version or "")
    if version and version < (4, 3):
        yield Fault(
            f"Podman {machine.podman.version} is too old: 4.3 is the oldest that works",
            {"version": machine.podman.version, "oldest": "4.3"},
            (fixes.upgrade(machine.system, "podman"),),
        )
