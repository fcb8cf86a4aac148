"""A clock that is wrong, or that nothing keeps right."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor import fixes
from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "clock"
SEVERITY = Severity.WARNING
NEEDS = ("time",)
SOURCE = (
    "TLS refuses certificates that are not valid yet; hosts of a fleet compare their clocks, "
    "and two seconds apart is an issue"
)
EARLIEST = 1764547200.0
"""2025-12-01: this program is younger."""


def check(machine: Machine) -> Iterator[Fault]:
    time = machine.time
    if time.now is not None and time.now < EARLIEST:
        yield Fault(
            "the clock is years behind: no registry or hub can be reached over TLS",
            {"unix_seconds": round(time.now)},
            (*_enable(machine), "timedatectl"),
            Severity.PROBLEM,
        )
    elif time.synchronised is False:
        yield Fault(
            f"the clock is not kept right by NTP ({time.said_by} says so)",
            {"said_by": time.said_by, "services": list(time.services)},
            _enable(machine),
        )


def _enable(machine: Machine) -> tuple[str, ...]:
    services = machine.time.services
    if "chronyd" in services or "chrony" in services:
        return (f"systemctl enable --now {'chronyd' if 'chronyd' in services else 'chrony'}", "chronyc makestep")
    if "systemd-timesyncd" in services:
        return ("timedatectl set-ntp true",)
    name = "chronyd" if fixes.family(machine.system) in {"fedora", "suse"} else "chrony"
    return (fixes.install(machine.system, "chrony"), f"systemctl enable --now {name}")
