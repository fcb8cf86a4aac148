"""Engines of a user that end when the user logs out."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "linger"
SEVERITY = Severity.WARNING
NEEDS = ("accounts", "podman")
SOURCE = "systemd ends a user's services, Podman's socket among them, with the last session unless the user lingers"


def check(machine: Machine) -> Iterator[Fault]:
    user, lingering = machine.who.operator, machine.accounts.lingering
    if machine.who.root or not machine.podman.rootless or user is None or lingering is None:
        return
    if user not in lingering:
        yield Fault(
            f"Podman and its containers end when {user} logs out",
            {"user": user, "lingering": sorted(lingering)},
            (f"loginctl enable-linger {user}",),
        )
