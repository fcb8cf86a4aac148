"""Rootless Podman without the control groups that limit memory."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor import fixes
from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "cgroup_delegation"
SEVERITY = Severity.PROBLEM
NEEDS = ("podman",)
SOURCE = (
    "a user's session gets only the controllers that systemd delegates to it "
    "(systemd.resource-control, Podman's rootless tutorial)"
)


def check(machine: Machine) -> Iterator[Fault]:
    podman = machine.podman
    if not podman.rootless or podman.cgroup_version != 2 or podman.cgroup_controllers is None:
        return
    lacking = [name for name in ("cpu", "memory", "pids") if name not in podman.cgroup_controllers]
    if lacking:
        yield Fault(
            f"rootless containers cannot be limited here: no control over {', '.join(lacking)} is delegated",
            {"controllers": list(podman.cgroup_controllers), "lacking": lacking},
            (
                fixes.drop_in("user@.service", "Service", "Delegate=cpu cpuset io memory pids", name="delegate"),
                "loginctl terminate-user $USER",
            ),
        )
