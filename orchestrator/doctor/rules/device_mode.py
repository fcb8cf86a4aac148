"""A device node whose mode shuts out those it is for."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "device_mode"
SEVERITY = Severity.PROBLEM
NEEDS = ("nodes",)
SOURCE = "udev leaves 0660 (group render) or 0666; NVIDIA's nodes are 0666 by default (hardware notes of both vendors)"


def check(machine: Machine) -> Iterator[Fault]:
    for node in machine.nodes:
        if node.mode & 0o066 == 0o066 or node.mode & 0o060 == 0o060 or node.mode & 0o006 == 0o006:
            continue
        nvidia = node.path.startswith("/dev/nvidia")
        fix = ("nvidia-modprobe -c 0 -u",) if nvidia else ("udevadm trigger --name-match=" + node.path,)
        yield Fault(
            f"{node.path} has mode {node.mode:04o}: only its owner may use the GPU",
            {"node": node.path, "mode": f"{node.mode:04o}", "uid": node.uid, "gid": node.gid},
            (f"chmod {'0666' if nvidia else '0660'} {node.path}", *fix),
        )
