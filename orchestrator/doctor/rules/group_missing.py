"""A user who is not in the group that opens what is needed."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "group_missing"
SEVERITY = Severity.PROBLEM
NEEDS = ("facts", "accounts", "nodes", "podman")
SOURCE = (
    "device nodes belong to the groups video and render (kyuz0 toolboxes#53); the control socket to the group outrider"
)
OURS = "outrider"


def check(machine: Machine) -> Iterator[Fault]:
    user = machine.who.operator
    if machine.rootless and not machine.who.root:
        yield from _nodes(machine, user or "$USER")
    group = machine.accounts.groups.get(OURS)
    if group is not None and user is not None and not machine.accounts.has(user, group):
        yield Fault(
            f"{user} is not in the group {OURS}, which may talk to the daemon",
            {"user": user, "group": OURS, "gid": group.gid},
            (f"sudo usermod -aG {OURS} {user}", f"newgrp {OURS}"),
            Severity.WARNING,
        )


def _nodes(machine: Machine, user: str) -> Iterator[Fault]:
    used = {device for gpu in machine.facts.accelerators for device in gpu.devices}
    lacking: dict[int, list[str]] = {}
    for node in machine.nodes:
        open_to_all = node.mode & 0o006 == 0o006
        mine = node.gid in {machine.who.gid, *machine.who.groups} or node.uid == machine.who.uid
        if node.path in used and not open_to_all and not mine:
            lacking.setdefault(node.gid, []).append(node.path)
    for gid, paths in lacking.items():
        name = machine.accounts.name_of(gid)
        yield Fault(
            f"{user} may not open {', '.join(paths)}: they belong to the group {name or gid}",
            {"user": user, "group": name, "gid": gid, "nodes": paths},
            (f"sudo usermod -aG {name or gid} {user}", f"loginctl terminate-user {user}"),
        )
