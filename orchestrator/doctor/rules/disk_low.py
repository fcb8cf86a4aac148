"""A disk that is full, nearly full, or read-only."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "disk_low"
SEVERITY = Severity.PROBLEM
NEEDS = ("disks",)
SOURCE = (
    "an image takes two and a half times its size while it is pulled; its compressed layers go through /var/tmp first"
)
NAMES = {
    "state": "Outrider's state",
    "store": "the weights",
    "storage": "Podman's images",
    "temporary": "temporary files",
}


def check(machine: Machine) -> Iterator[Fault]:
    seen: set[int] = set()
    for disk in machine.disks:
        if disk.device in seen:
            continue
        seen.add(disk.device)
        uses = [other for other in machine.disks if other.device == disk.device]
        what = ", ".join(f"{NAMES.get(use.what, use.what)} ({use.path})" for use in uses)
        share = disk.free / disk.total if disk.total else 1.0
        evidence = {
            "paths": [use.path for use in uses],
            "total": disk.total,
            "free": disk.free,
            "inodes_free": disk.inodes_free,
            "low_water": machine.wanted.low_water,
        }
        if disk.read_only:
            fix = (f"findmnt -T {disk.path}", f"mount -o remount,rw $(findmnt -nT {disk.path} -o TARGET)")
            yield Fault(f"the disk of {what} is mounted read-only", evidence, fix)
        elif share < machine.wanted.low_water:
            free = f"{disk.free / 2**30:.1f} GiB ({share:.1%})"
            yield Fault(
                f"the disk of {what} has {free} left", evidence, (f"df -h {disk.path}", "outrider prune --dry-run")
            )
        elif disk.inodes and disk.inodes_free * 100 < disk.inodes:
            yield Fault(
                f"the disk of {what} has {disk.inodes_free} inodes left",
                evidence,
                (f"df -i {disk.path}", "outrider prune --dry-run"),
            )
