"""Podman 5.5.0 to 5.5.2 look into /etc/cdi only."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.catalogue.types import version_numbers
from orchestrator.doctor import fixes
from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "cdi_folder"
SEVERITY = Severity.PROBLEM
NEEDS = ("cdi", "podman")
SOURCE = "a regression of Podman 5.5 (NixOS #417312, #420638); 5.6 reads both folders again"


def check(machine: Machine) -> Iterator[Fault]:
    version = version_numbers(machine.podman.version or "")
    if not (5, 5) <= version < (5, 5, 3) or machine.cdi.configured is not None:
        return
    kinds = {file.kind for file in machine.cdi.files if file.folder == "/etc/cdi" and file.broken is None}
    unread = [f for f in machine.cdi.files if f.folder == "/var/run/cdi" and f.broken is None and f.kind not in kinds]
    if unread:
        yield Fault(
            f"Podman {machine.podman.version} does not look into /var/run/cdi, where {unread[0].kind} is described",
            {"podman": machine.podman.version, "files": [file.path for file in unread]},
            (
                "mkdir -p /etc/containers/containers.conf.d",
                fixes.file(
                    "/etc/containers/containers.conf.d/cdi.conf",
                    "[engine]",
                    'cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]',
                ),
                "systemctl restart podman.service",
            ),
        )
