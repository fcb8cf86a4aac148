"""A CDI specification in a version that this Podman does not read: it ignores the whole file."""

from __future__ import annotations

from collections.abc import Iterator

from containers.cdi import reads
from orchestrator.catalogue.types import version_numbers
from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "cdi_too_new"
SEVERITY = Severity.PROBLEM
NEEDS = ("cdi", "podman", "toolkit")
SOURCE = (
    "newest CDI version by Podman release, from the library each vendors; toolkit >= 1.19 "
    "writes additionalGids (container-toolkit#1860)"
)
GIDS = "0.7.0"
FLAG = "no-additional-gids-for-device-nodes"
REFRESH_ENV = "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env"


def check(machine: Machine) -> Iterator[Fault]:
    newest = reads(machine.podman.version)
    if newest is None:
        return
    for file in machine.cdi.files:
        if file.broken is not None or file.version is None:
            continue
        needs = file.version
        if file.gids and version_numbers(needs) < (0, 7):
            needs = GIDS
        if version_numbers(needs) <= version_numbers(newest):
            continue
        what = "uses additionalGids, which came with" if file.gids else "is written in"
        yield Fault(
            f"{file.path} {what} CDI {needs}, and Podman {machine.podman.version} reads up to {newest}: it ignores it",
            {
                "file": file.path,
                "cdi": file.version,
                "podman": machine.podman.version,
                "podman_reads": newest,
                "additional_gids": file.gids,
                "toolkit": machine.toolkit.version,
            },
            _fix(machine, file.path, file.vendor, gids=file.gids),
        )


def _fix(machine: Machine, path: str, vendor: str | None, *, gids: bool) -> tuple[str, ...]:
    if vendor != "nvidia":
        return (f"rm {path}",)
    if machine.toolkit.refresh:
        keep = f"echo 'NVIDIA_CTK_CDI_GENERATE_FEATURE_FLAGS={FLAG}' >> {REFRESH_ENV}"
        return (*((keep,) if gids else ()), "systemctl restart nvidia-cdi-refresh.service")
    return (f"nvidia-ctk cdi generate{f' --feature-flag {FLAG}' if gids else ''} --output={path}",)
