"""Limits of the service that engines run into."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor import fixes
from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "ulimit_low"
SEVERITY = Severity.WARNING
NEEDS = ("limits",)
SOURCE = (
    "each stream takes two descriptors of the gateway, each weight file one of the engine; "
    "llama.cpp --mlock pins memory"
)
LEAST = {"nofile": 8192, "nproc": 4096, "memlock": 65536}
"""Descriptors, processes, bytes."""
KEYS = {"nofile": "LimitNOFILE", "nproc": "LimitNPROC", "memlock": "LimitMEMLOCK"}


def check(machine: Machine) -> Iterator[Fault]:
    for limit in machine.limits:
        least = LEAST.get(limit.name)
        if least is None or limit.hard is None or limit.hard >= least:
            continue
        key = KEYS[limit.name]
        unit = limit.place if limit.place.endswith(".service") else "podman.service"
        session = fixes.file(f"/etc/security/limits.d/90-outrider-{limit.name}.conf", f"* hard {limit.name} {least}")
        service = fixes.drop_in(unit, "Service", f"{key}={least}", name=f"limits-{limit.name}")
        yield Fault(
            f"{limit.place} may have {limit.hard} ({limit.name}) at most, and {least} are needed",
            {"place": limit.place, "limit": limit.name, "hard": limit.hard, "needed": least},
            (service, f"systemctl restart {unit}") if limit.place == unit else (session, service),
        )
