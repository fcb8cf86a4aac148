"""The shell needs a proxy, and Podman's service has none."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor import fixes
from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "proxy_missing"
SEVERITY = Severity.WARNING
NEEDS = ("proxies", "units")
SOURCE = (
    "Podman's service takes its proxy from its own environment, not from the shell of whoever "
    "asks (podman-system-service(1))"
)


def check(machine: Machine) -> Iterator[Fault]:
    if "podman.service" not in machine.units.files or not machine.who.root:
        return
    service = {proxy.name for proxy in machine.proxies if proxy.place != "this shell"}
    shell = [
        p for p in machine.proxies if p.place == "this shell" and p.name in {"http_proxy", "https_proxy"} and p.host
    ]
    lacking = {proxy.name: proxy for proxy in shell if proxy.name not in service}
    if lacking and not service & {"http_proxy", "https_proxy", "all_proxy"}:
        lines = [f"Environment={name.upper()}={proxy.value}" for name, proxy in sorted(lacking.items())]
        keep = "Environment=NO_PROXY=localhost,127.0.0.1,::1"
        yield Fault(
            "this shell has a proxy, and podman.service has none: its pulls go out directly",
            {"shell": {name: proxy.value for name, proxy in sorted(lacking.items())}},
            (
                fixes.drop_in("podman.service", "Service", *lines, keep, name="proxy"),
                "systemctl restart podman.service",
            ),
        )
