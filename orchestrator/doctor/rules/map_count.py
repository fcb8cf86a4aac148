"""Too few memory mappings for a large model."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor import fixes
from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "map_count"
SEVERITY = Severity.WARNING
NEEDS = ("kernel",)
SOURCE = "the kernel's own default is 65530; HIP and a model of many files map more than a small limit allows (vm.rst)"
LEAST = 65530


def check(machine: Machine) -> Iterator[Fault]:
    count = machine.kernel.max_map_count
    if count is not None and count < LEAST:
        yield Fault(
            f"vm.max_map_count is {count}, below the kernel's default: large models fail to map",
            {"max_map_count": count, "default": LEAST},
            fixes.sysctl("vm.max_map_count", 1048576),
        )
