"""A user without subordinate ids, who cannot unpack an image."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "subordinate_ids"
SEVERITY = Severity.PROBLEM
NEEDS = ("accounts", "podman")
SOURCE = (
    "images have files of more than one user: potentially insufficient UIDs or GIDs available (Podman's rootless guide)"
)


def check(machine: Machine) -> Iterator[Fault]:
    user, ranges = machine.who.operator, machine.accounts.ranges
    if machine.who.root or not machine.podman.rootless or user is None or ranges is None:
        return
    if user not in ranges and str(machine.who.uid) not in ranges:
        yield Fault(
            f"{user} has no subordinate ids in /etc/subuid and /etc/subgid: images cannot be unpacked",
            {"user": user, "have": len(ranges)},
            (
                f"sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}",
                "podman system migrate",
            ),
        )
