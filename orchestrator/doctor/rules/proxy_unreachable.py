"""A proxy of Podman's service that does not answer: no image can be pulled."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "proxy_unreachable"
SEVERITY = Severity.PROBLEM
NEEDS = ("proxies",)
SOURCE = (
    "Podman's service takes its proxy from its own environment, not from the shell of whoever "
    "asks (podman-system-service(1))"
)


def check(machine: Machine) -> Iterator[Fault]:
    reported: set[tuple[str | None, int | None]] = set()
    for proxy in machine.proxies:
        if proxy.place == "this shell" or proxy.name == "no_proxy" or (proxy.host, proxy.port) in reported:
            continue
        if proxy.reachable is False or (proxy.host is None and proxy.why is not None):
            reported.add((proxy.host, proxy.port))
            yield Fault(
                f"{proxy.place} is told to use the proxy {proxy.value}: {proxy.why}",
                {"place": proxy.place, "variable": proxy.name, "proxy": proxy.value, "why": proxy.why},
                (
                    "systemctl show podman.service -p Environment -p EnvironmentFiles",
                    "systemctl edit podman.service",
                    "systemctl restart podman.service",
                ),
            )
