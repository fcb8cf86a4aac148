"""What must not go through the proxy is not excepted from it."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor import fixes
from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "no_proxy"
SEVERITY = Severity.WARNING
NEEDS = ("proxies",)
SOURCE = "requests to this machine and to a mirror in the own network end at a proxy that cannot reach them"


def check(machine: Machine) -> Iterator[Fault]:
    told = [proxy for proxy in machine.proxies if proxy.place != "this shell"]
    proxied = [proxy for proxy in told if proxy.name != "no_proxy" and proxy.host is not None]
    if not proxied:
        return
    excepted = [word.strip() for p in told if p.name == "no_proxy" for word in p.value.split(",") if word.strip()]
    wanted = ["localhost", *(registry.partition(":")[0] for registry in machine.wanted.registries)]
    lacking = [host for host in wanted if not any(_excepts(word, host) for word in excepted)]
    if lacking:
        value = ",".join(
            dict.fromkeys([*excepted, *lacking, *(["127.0.0.1", "::1"] if "localhost" in lacking else [])])
        )
        yield Fault(
            f"NO_PROXY of {proxied[0].place} lacks {', '.join(lacking)}",
            {"proxy": proxied[0].value, "no_proxy": excepted, "lacking": lacking},
            (
                fixes.drop_in("podman.service", "Service", f"Environment=NO_PROXY={value}", name="no-proxy"),
                "systemctl restart podman.service",
            ),
        )


def _excepts(word: str, host: str) -> bool:
    return (
        word in {"*", host}
        or host.endswith(f".{word.lstrip('.')}")
        or (host == "localhost" and word in {"127.0.0.1", "127.0.0.0/8"})
    )
