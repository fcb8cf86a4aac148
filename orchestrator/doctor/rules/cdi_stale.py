"""A CDI specification of another driver: its files are gone, or it does not name the GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator

from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "cdi_stale"
SEVERITY = Severity.PROBLEM
NEEDS = ("facts", "cdi", "toolkit")
SUPERSEDES = ("cdi_stale",)
SOURCE = (
    "after a driver update the specification still mounts the old libraries, and every start "
    "fails (container-toolkit#856, Podman #26233)"
)
LIBRARY = re.compile(r"/lib(?:cuda|nvidia-[\w-]+)\.so\.(\d+\.\d+(?:\.\d+)?)$")


def check(machine: Machine) -> Iterator[Fault]:
    unnamed = machine.problems("cdi_stale")
    driver = next((gpu.driver for gpu in machine.gpus("nvidia") if gpu.driver), None)
    for file in machine.cdi.of("nvidia.com/gpu"):
        gone = [path for path in file.missing if not path.startswith("/dev/")]
        versions = {match[1] for path in file.paths if (match := LIBRARY.search(path))}
        other = sorted(v for v in versions if driver is not None and v != driver)
        if not gone and not other and not unnamed:
            continue
        if other:
            finding = f"{file.path} is of driver {', '.join(other)}, and {driver} runs"
        elif gone:
            finding = f"{file.path} names files that do not exist: {', '.join(gone[:3])}"
        else:
            finding = f"{file.path}: {unnamed[0].detail}"
        evidence = {"file": file.path, "driver": driver, "drivers_named": sorted(versions), "missing": gone[:10]}
        yield Fault(finding, evidence, _fix(machine, file.folder))
        return


def _fix(machine: Machine, folder: str) -> tuple[str, ...]:
    if machine.toolkit.refresh and folder != "/etc/cdi":
        return ("systemctl restart nvidia-cdi-refresh.service",)
    return ("nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",)
