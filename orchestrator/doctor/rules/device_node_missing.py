"""A device node that containers are to be given is not there."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "device_node_missing"
SEVERITY = Severity.PROBLEM
NEEDS = ("facts", "cdi", "nodes")
SUPERSEDES = ("device_node_missing",)
SOURCE = (
    "a node of the specification that is missing fails the start: failed to stat CDI host "
    "device; /dev/nvidia-uvm is made by nvidia-modprobe"
)


def check(machine: Machine) -> Iterator[Fault]:
    for problem in machine.problems("device_node_missing"):
        fix = ("modprobe amdgpu", "udevadm trigger && udevadm settle", "ls -l /dev/kfd /dev/dri")
        yield Fault(problem.detail, {"nodes": [node.path for node in machine.nodes]}, fix)
    if not machine.gpus("nvidia"):
        return
    named = {
        path for file in machine.cdi.of("nvidia.com/gpu") for path in file.missing if path.startswith("/dev/nvidia")
    }
    if named:
        yield Fault(
            f"{', '.join(sorted(named))}: named by the CDI specification, and not there",
            {"missing": sorted(named), "nodes": [node.path for node in machine.nodes]},
            (
                "nvidia-modprobe -c 0 -u",
                "nvidia-ctk system create-device-nodes --control-devices --load-kernel-modules",
            ),
        )
