"""Podman copies every file of every layer."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "storage_driver"
SEVERITY = Severity.PROBLEM
NEEDS = ("podman",)
SOURCE = (
    "with the driver vfs each layer is a full copy: a 15 GB image takes its size once a layer (containers-storage.conf)"
)


def check(machine: Machine) -> Iterator[Fault]:
    if machine.podman.driver == "vfs":
        conf = "/etc/containers/storage.conf" if not machine.rootless else "~/.config/containers/storage.conf"
        change = f"""grep -q '^driver' {conf} && sed -i 's/^driver.*/driver = "overlay"/' {conf}"""
        write = f"""printf '%s\\n' '[storage]' 'driver = "overlay"' >> {conf}"""
        yield Fault(
            "Podman's storage driver is vfs: each layer of an image is a full copy of all below it",
            {"driver": "vfs", "root": machine.podman.root},
            (
                f"mkdir -p {conf.rpartition('/')[0]}",
                f"{change} || {write}",
                "podman system reset  # removes all images and containers",
            ),
        )
