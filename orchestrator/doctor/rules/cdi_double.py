"""The same device in two CDI files: the older copy hides what the newer one mends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import CdiFile, Machine

CODE = "cdi_double"
SEVERITY = Severity.WARNING
NEEDS = ("cdi", "toolkit")
SOURCE = (
    "a copy in /etc/cdi beside the one that nvidia-cdi-refresh keeps in /var/run/cdi conflicts "
    "with it (container-toolkit#1865)"
)


def check(machine: Machine) -> Iterator[Fault]:
    for kind in sorted({file.kind for file in machine.cdi.files if file.kind is not None}):
        files = machine.cdi.of(kind)
        shared = [name for name in _names(files) if sum(name in file.names for file in files) > 1]
        if not shared:
            continue
        stays = next((f for f in files if f.folder == "/var/run/cdi" and machine.toolkit.refresh), files[0])
        others = [file.path for file in files if file is not stays]
        yield Fault(
            f"{len(files)} files describe {kind}={shared[0]}: {', '.join(file.path for file in files)}",
            {"kind": kind, "files": [file.path for file in files], "devices": shared[:10]},
            tuple(f"rm {path}" for path in others),
        )


def _names(files: Sequence[CdiFile]) -> list[str]:
    return list(dict.fromkeys(name for file in files for name in file.names))
