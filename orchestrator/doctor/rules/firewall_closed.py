"""The firewall lets nobody reach what listens beyond this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "firewall_closed"
SEVERITY = Severity.PROBLEM
NEEDS = ("firewall",)
SOURCE = "a default of drop without a rule for the port: peers and clients see silence, not a refusal"
COMMANDS: Mapping[str, Callable[[int], tuple[str, ...]]] = {
    "ufw": lambda port: (f"ufw allow {port}/tcp",),
    "firewalld": lambda port: (f"firewall-cmd --permanent --add-port={port}/tcp", "firewall-cmd --reload"),
    "nft": lambda port: (
        f"nft insert rule inet filter input tcp dport {port} accept",
        "nft list ruleset > /etc/nftables.conf",
    ),
    "iptables": lambda port: (f"iptables -I INPUT -p tcp --dport {port} -j ACCEPT", "netfilter-persistent save"),
}


def check(machine: Machine) -> Iterator[Fault]:
    for what, port in machine.wanted.exposed:
        if port in machine.firewall.closed:
            yield Fault(
                f"{what} listens on port {port} for other machines, and the firewall drops what comes in there",
                {"port": port, "tool": machine.firewall.tool, "chains": list(machine.firewall.evidence)},
                COMMANDS[machine.firewall.tool or "nft"](port),
            )
