"""A Podman socket at which nobody answers."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "podman_socket"
SEVERITY = Severity.PROBLEM
NEEDS = ("podman", "units")
SOURCE = "the daemon talks to Podman over its socket alone; one that is there is never replaced"


def check(machine: Machine) -> Iterator[Fault]:
    podman = machine.podman
    if podman.socket is None or podman.socket == "answers":
        return
    what = "refuses connections" if podman.socket == "refuses" else "does not answer"
    user = "" if machine.who.root else "--user "
    yield Fault(
        f"Podman's socket {podman.socket_path} {what}",
        {
            "socket": podman.socket_path,
            "state": podman.socket,
            "unit": machine.units.state("podman.socket", "ActiveState"),
        },
        (f"systemctl {user}restart podman.socket", f"systemctl {user}status podman.socket podman.service"),
    )
