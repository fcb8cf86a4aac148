"""A CDI file that a rootless Podman may not read."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "cdi_unreadable"
SEVERITY = Severity.PROBLEM
NEEDS = ("cdi", "podman")
SOURCE = "rootless Podman reads specifications as its user: they must be readable for all (Podman #17539)"


def check(machine: Machine) -> Iterator[Fault]:
    if not machine.rootless:
        return
    for file in machine.cdi.files:
        if file.mode is not None and not file.mode & 0o004:
            yield Fault(
                f"{file.path} has mode {file.mode:04o}, and Podman runs without root here: it cannot read it",
                {"file": file.path, "mode": f"{file.mode:04o}"},
                (f"chmod a+r {file.path}", f"chmod a+rx {file.folder}"),
            )
