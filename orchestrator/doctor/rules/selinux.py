"""SELinux that keeps containers from the GPU."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor import fixes
from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "selinux"
SEVERITY = Severity.PROBLEM
NEEDS = ("selinux", "facts")
SOURCE = (
    "a policy without the container module knows no container; its switch "
    "container_use_devices opens device nodes to confined ones"
)


def check(machine: Machine) -> Iterator[Fault]:
    if not machine.selinux.enforcing or not machine.facts.accelerators:
        return
    if machine.selinux.use_devices is None:
        yield Fault(
            "SELinux enforces a policy that has no module for containers",
            {"enforcing": True, "container_use_devices": None},
            (fixes.install(machine.system, "container-selinux"),),
        )
    elif not machine.selinux.use_devices:
        yield Fault(
            "SELinux keeps confined containers from GPUs. Engines of Outrider run unconfined by it; others fail",
            {"enforcing": True, "container_use_devices": False},
            ("setsebool -P container_use_devices on",),
            Severity.WARNING,
        )
