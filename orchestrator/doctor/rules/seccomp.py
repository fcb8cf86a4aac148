"""Podman's seccomp filter is off, or its file is missing."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor import fixes
from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "seccomp"
SEVERITY = Severity.PROBLEM
NEEDS = ("podman",)
SOURCE = "a profile that is configured and missing fails every start: opening seccomp profile failed"


def check(machine: Machine) -> Iterator[Fault]:
    podman = machine.podman
    if podman.seccomp is False:
        yield Fault(
            "this Podman was built without seccomp, or the kernel has none: engines run without the filter",
            {"seccomp": False, "runtime": podman.runtime},
            ("podman info --format '{{.Host.Security.SECCOMPEnabled}}'", "zgrep CONFIG_SECCOMP_FILTER /proc/config.gz"),
            Severity.WARNING,
        )
    elif podman.seccomp_profile is not None and podman.seccomp_profile_exists is False:
        yield Fault(
            f"Podman's seccomp profile {podman.seccomp_profile} does not exist: no container with it starts",
            {"profile": podman.seccomp_profile},
            (
                fixes.install(
                    machine.system,
                    "--reinstall golang-github-containers-common",
                    fedora="containers-common",
                    arch="containers-common",
                    suse="libcontainers-common",
                ),
            ),
        )
