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
_ANY = ((0, 65535),)


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
    sets = {_name(s, "name"): s.get("elem") for entry in entries if isinstance(s := entry.get("set"), Mapping)}
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
            rules.chains.setdefault(_name(rule, "chain"), []).extend(_nft_lines(rule, sets))
    return rules


def _name(entry: Mapping[str, Any], key: str) -> str:
    return f"{entry.get('family')} {entry.get('table')} {entry.get(key)}"


def _nft_lines(rule: Mapping[str, Any], sets: Mapping[str, object]) -> Iterator[Line]:
    """A rule's verdicts. What iptables put there in words that nft cannot print may accept anything here: the other
    view decides."""
    expressions = [e for e in rule.get("expr") or () if isinstance(e, Mapping)]
    matches = [m for e in expressions if isinstance(m := e.get("match"), Mapping)]
    hidden = any(isinstance(x := e.get("xt"), Mapping) and x.get("type") == "match" for e in expressions)
    ports: tuple[tuple[int, int], ...] = _ANY if hidden else ()
    for match in matches:
        if _is_port(match.get("left")) and match.get("op") in {"==", "in"}:
            ports = tuple(_nft_ports(match.get("right"), rule, sets))
    for expression in expressions:
        yield from _nft_verdict(expression, rule, ports, unconditional=not matches and not hidden)


def _nft_verdict(
    expression: Mapping[str, Any], rule: Mapping[str, Any], ports: tuple[tuple[int, int], ...], *, unconditional: bool
) -> Iterator[Line]:
    for verdict in ("accept", "drop", "reject"):
        if verdict in expression:
            word = "accept" if verdict == "accept" else "drop"
            if word == "accept" or ports != _ANY:
                yield Line(word, None, ports, unconditional)
    for verdict in ("jump", "goto"):
        target = expression.get(verdict)
        if isinstance(target, Mapping):
            yield Line(
                verdict, f"{rule.get('family')} {rule.get('table')} {target.get('target')}", ports, unconditional
            )
    chosen = expression.get("vmap")
    if isinstance(chosen, Mapping) and _is_port(chosen.get("key")):
        data = chosen.get("data")
        pairs = data.get("set") if isinstance(data, Mapping) else None
        if not isinstance(pairs, list):
            yield Line("accept", None, _ANY)  # a map by name: its verdicts are not here
            return
        for pair in pairs:
            if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[1], Mapping):
                yield from _nft_verdict(pair[1], rule, tuple(_nft_ports(pair[0], rule, {})), unconditional=False)


def _is_port(left: object) -> bool:
    payload = left.get("payload") if isinstance(left, Mapping) else None
    return isinstance(payload, Mapping) and payload.get("protocol") in {"tcp", "th"} and payload.get("field") == "dport"


def _nft_ports(right: object, rule: Mapping[str, Any], sets: Mapping[str, object]) -> Iterator[tuple[int, int]]:
    if isinstance(right, int):
        yield right, right
    elif isinstance(right, str) and right.startswith("@"):
        elements = sets.get(f"{rule.get('family')} {rule.get('table')} {right[1:]}")
        for part in elements if isinstance(elements, list) else ():
            yield from _nft_ports(part, rule, {})
    elif isinstance(right, Mapping):
        bounds = right.get("range")
        if isinstance(bounds, list) and len(bounds) == 2 and all(isinstance(b, int) for b in bounds):
            yield bounds[0], bounds[1]
        parts = right.get("set")
        for part in parts if isinstance(parts, list) else ():
            yield from _nft_ports(part, rule, sets)


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
