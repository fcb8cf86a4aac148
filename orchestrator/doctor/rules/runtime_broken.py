"""Podman cannot start a container with the host's own settings."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor import fixes
from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "runtime_broken"
SEVERITY = Severity.PROBLEM
NEEDS = ("trial", "podman")
SOURCE = (
    "a trial container of one program; crun fails on hybrid control groups, and an "
    "unprivileged root on limits above its own"
)
FOLDER = "/etc/containers/containers.conf.d"


def check(machine: Machine) -> Iterator[Fault]:
    trial = machine.trial
    if not trial.tried or trial.works:
        return
    runtime = machine.podman.runtime
    other = "runc" if runtime == "crun" else "crun"
    evidence = {"complaint": trial.complaint, "runtime": runtime, "works_with": trial.works_with}
    again = "podman run --rm --rootfs --read-only / /bin/true"
    if trial.works_with is None:
        yield Fault(
            f"Podman cannot start a container: {trial.complaint}",
            evidence,
            (fixes.install(machine.system, other), again),
        )
    elif machine.podman.socket == "answers":
        yield Fault(
            f"Podman starts a container only with {trial.works_with}, which the service at "
            f"{machine.podman.socket_path} does not have: {trial.complaint}",
            evidence,
            _configure(trial.conf or ""),
            Severity.WARNING,
        )


def _configure(conf: str) -> tuple[str, ...]:
    """What was tried, for the service; `outrider up` starts one of its own with it where none runs."""
    written = fixes.file(f"{FOLDER}/outrider.conf", *conf.splitlines())
    return (f"mkdir -p {FOLDER} && {written}", "systemctl restart podman.service")
