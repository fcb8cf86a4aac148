"""Podman is not installed, or does not answer."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor import fixes
from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "podman_missing"
SEVERITY = Severity.PROBLEM
NEEDS = ("podman",)
SOURCE = "every engine is a container of Podman's"


def check(machine: Machine) -> Iterator[Fault]:
    if not machine.podman.installed:
        yield Fault("Podman is not installed", {"path": None}, (fixes.install(machine.system, "podman"),))
    elif machine.podman.complaint is not None:
        yield Fault(
            f"Podman does not say what it is: {machine.podman.complaint}",
            {"version": machine.podman.version, "complaint": machine.podman.complaint},
            ("podman --log-level=debug info", "systemctl restart podman.socket"),
        )
