"""Whether the firewall lets in what listens beyond loopback. Only then is it asked at all.

Two views of the same rules: `nft` (what the kernel does) and `iptables-save` (what iptables put there, in words
that nft cannot always print). A port is closed when one of them drops what no rule accepted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.doctor.machine import Firewall
from orchestrator.doctor.sources.look import Look, Unseen

_DEPTH = 16


@dataclass(frozen=True, slots=True)
class Line:
    """A rule: where it sends a packet, and the ports it is about; `all_packets` without any condition."""

    verdict: str
    target: str | None = None
    ports: tuple[tuple[int, int], ...] = ()
    all_packets: bool = False

    def covers(self, port: int) -> bool:
        return any(low <= port <= high for low, high in self.ports)


@dataclass(slots=True)
class Rules:
    """Chains by name; `hooked` are those that see what comes in, with their policies."""

    chains: dict[str, list[Line]] = field(default_factory=dict)
    hooked: dict[str, str] = field(default_factory=dict)

    def lets_in(self, port: int) -> bool:
        """Whether every hooked chain lets a TCP connection to this port through."""
        return all((self._verdict(name, port) or policy) == "accept" for name, policy in self.hooked.items())

    def _verdict(self, name: str, port: int, depth: int = 0) -> str | None:
        """accept, drop, or None when the chain lets it fall through. A rule of unknown condition may accept only."""
        if depth > _DEPTH:
            return None
        for line in self.chains.get(name, ()):
            if line.verdict in {"jump", "goto"} and line.target is not None:
                found = self._verdict(line.target, port, depth + 1)
                if found == "accept" or (found == "drop" and line.all_packets):
                    return found
            elif line.covers(port) or line.all_packets:
                return line.verdict
        return None


def firewall(look: Look, ports: Sequence[int]) -> Firewall:
    """Raises `Unseen` when there are ports to ask for and nothing tells the rules."""
    tool = _tool(look)
    if not ports:
        return Firewall(tool)
    views: list[Rules] = []
    complaints = []
    for read in (_nft, _iptables):
        try:
            views.append(read(look))
        except Unseen as error:
            complaints.append(str(error))
    if not views:
        raise Unseen("; ".join(complaints))
    closed = tuple(port for port in ports if not all(rules.lets_in(port) for rules in views))
    evidence = tuple(f"{name}: policy {policy}" for rules in views for name, policy in rules.hooked.items())
    return Firewall(tool, closed, evidence)


def _tool(look: Look) -> str | None:
    """What manages the rules: decides the command that opens a port."""
    if (look.text("/etc/ufw/ufw.conf") or "").replace(" ", "").find("ENABLED=yes") >= 0:
        return "ufw"
    if look.at("/etc/firewalld").is_dir() and look.program("firewall-cmd") is not None:
        return "firewalld"
    if look.program("nft") is not None:
        return "nft"
    return "iptables" if look.program("iptables") is not None else None


def _nft(look: Look) -> Rules:
    try:
        data = json.loads(look.said("nft", "-j", "list", "ruleset"))
        entries = [entry for entry in data["nftables"] if isinstance(entry, Mapping)]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Unseen(f"`nft` says nothing readable: {error}") from error
    rules = Rules()
    for entry in entries:
        chain = entry.get("chain")
        if isinstance(chain, Mapping):
            name = _name(chain, "name")
            rules.chains.setdefault(name, [])
            if chain.get("hook") == "input" and chain.get("type") == "filter":
                rules.hooked[name] = str(chain.get("policy", "accept"))
        rule = entry.get("rule")
        if isinstance(rule, Mapping):
            rules.chains.setdefault(_name(rule, "chain"), []).extend(_nft_lines(rule))
    return rules


def _name(entry: Mapping[str, Any], key: str) -> str:
    return f"{entry.get('family')} {entry.get('table')} {entry.get(key)}"


def _nft_lines(rule: Mapping[str, Any]) -> Iterator[Line]:
    expressions = [e for e in rule.get("expr") or () if isinstance(e, Mapping)]
    ports: tuple[tuple[int, int], ...] = ()
    conditions = 0
    for expression in expressions:
        match = expression.get("match")
        if isinstance(match, Mapping):
            conditions += 1
            if _is_port(match.get("left")) and match.get("op") in {"==", "in"}:
                ports = tuple(_nft_ports(match.get("right")))
        elif "xt" in expression:
            conditions += 1
    for expression in expressions:
        for verdict in ("accept", "drop", "reject", "jump", "goto"):
            if verdict in expression:
                content = expression[verdict]
                target = content.get("target") if isinstance(content, Mapping) else None
                where = f"{rule.get('family')} {rule.get('table')} {target}" if target else None
                yield Line(
                    "drop" if verdict == "reject" else verdict,
                    where if verdict in {"jump", "goto"} else None,
                    ports,
                    conditions == 0,
                )


def _is_port(left: object) -> bool:
    payload = left.get("payload") if isinstance(left, Mapping) else None
    return isinstance(payload, Mapping) and payload.get("protocol") in {"tcp", "th"} and payload.get("field") == "dport"


def _nft_ports(right: object) -> Iterator[tuple[int, int]]:
    if isinstance(right, int):
        yield right, right
    elif isinstance(right, Mapping):
        if (
            isinstance(bounds := right.get("range"), list)
            and len(bounds) == 2
            and all(isinstance(b, int) for b in bounds)
        ):
            yield bounds[0], bounds[1]
        for part in right.get("set") or ():
            yield from _nft_ports(part)


_POLICY = re.compile(r"^:(\S+) (\S+)")
_DPORTS = re.compile(r"--dports? (\S+)")
_JUMP = re.compile(r" -([jg]) (\S+)")
_CONDITION = re.compile(r" -(?:s|d|i|o|p|m) ")


def _iptables(look: Look) -> Rules:
    rules = Rules()
    table = ""
    for line in look.said("iptables-save").splitlines():
        if line.startswith("*"):
            table = line[1:]
        if table != "filter":
            continue
        if match := _POLICY.match(line):
            rules.chains.setdefault(match[1], [])
            if match[1] == "INPUT":
                rules.hooked["INPUT"] = match[2].lower()
        elif line.startswith("-A ") and (jump := _JUMP.search(line)):
            chain = line.split()[1]
            verdict = {"ACCEPT": "accept", "DROP": "drop", "REJECT": "drop"}.get(jump[2], "jump")
            known = verdict != "jump" or not jump[2].isupper() or jump[2] in rules.chains
            if known:
                ports = () if " -p udp" in line else tuple(_iptables_ports(line))
                target = jump[2] if verdict == "jump" else None
                rules.chains.setdefault(chain, []).append(Line(verdict, target, ports, not _CONDITION.search(line)))
    return rules


def _iptables_ports(line: str) -> Iterator[tuple[int, int]]:
    match = _DPORTS.search(line)
    for part in match[1].split(",") if match else ():
        low, _, high = part.partition(":")
        if low.isdigit() and (high or low).isdigit():
            yield int(low), int(high or low)
