"""Rootless Podman with a runtime that cannot keep the groups which open an AMD GPU."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor import fixes
from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "rootless_runtime"
SEVERITY = Severity.PROBLEM
NEEDS = ("podman", "facts", "nodes")
SOURCE = "run.oci.keep_original_groups is crun's; without it: Unable to open /dev/kfd read-write (kyuz0 toolboxes#53)"


def check(machine: Machine) -> Iterator[Fault]:
    runtime = machine.podman.runtime
    used = {device for gpu in machine.gpus("amd") for device in gpu.devices}
    closed = [node.path for node in machine.nodes if node.path in used and node.mode & 0o006 != 0o006]
    if machine.podman.rootless and closed and runtime is not None and runtime != "crun":
        yield Fault(
            f"Podman runs without root and with {runtime}, which hides the groups that may open {', '.join(closed)}",
            {"runtime": runtime, "nodes": closed},
            (fixes.install(machine.system, "crun"), "podman info --format '{{.Host.OCIRuntime.Name}}'"),
        )
