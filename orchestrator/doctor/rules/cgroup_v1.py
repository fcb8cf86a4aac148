"""Control groups of the first version."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.catalogue.types import version_numbers
from orchestrator.doctor import fixes
from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "cgroup_v1"
SEVERITY = Severity.WARNING
NEEDS = ("podman",)
SOURCE = (
    "Podman 6 drops cgroups v1; crun refuses the hybrid mode; a rootless Podman has no limits "
    "with it (Podman 6.0 release notes)"
)


def check(machine: Machine) -> Iterator[Fault]:
    podman = machine.podman
    if podman.cgroup_version != 1:
        return
    new = version_numbers(podman.version or "") >= (6,)
    if new:
        why = f"Podman {podman.version} does not support them"
    elif podman.runtime == "crun":
        why = "crun does not start containers in the hybrid mode"
    elif podman.rootless:
        why = "without root no container can be limited with them"
    else:
        why = "Podman 6 will not support them"
    bad = new or podman.runtime == "crun" or bool(podman.rootless)
    yield Fault(
        f"this host has control groups v1: {why}",
        {"cgroup_version": 1, "podman": podman.version, "runtime": podman.runtime, "rootless": podman.rootless},
        fixes.kernel_argument(machine.system, add="systemd.unified_cgroup_hierarchy=1"),
        Severity.PROBLEM if bad else None,
    )
