"""The driver's libraries are of another version than the module that runs."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "driver_mismatch"
SEVERITY = Severity.PROBLEM
NEEDS = ("facts", "kernel")
SUPERSEDES = ("driver_mismatch",)
SOURCE = (
    "an upgrade under the running module: NVML fails until a reboot (nvidia-docker#365, #584; "
    "unattended-upgrades does it)"
)


def check(machine: Machine) -> Iterator[Fault]:
    said = machine.problems("driver_mismatch")
    driver = next((gpu.driver for gpu in machine.gpus("nvidia") if gpu.driver), None)
    module = machine.kernel.nvidia_module
    differ = driver is not None and module is not None and driver != module
    if not said and not differ:
        return
    yield Fault(
        said[0].detail if said else f"the NVIDIA module is {module}, its libraries are {driver}",
        {"module": module, "libraries": driver},
        ("systemctl reboot",),
    )
