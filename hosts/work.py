"""What the processes of a container do, as the kernel counts it: CPU, bytes from disks, memory, stopped or not.

An engine that says nothing may compile, read its weights from a slow disk, or be dead: here that shows, whatever
its HTTP server says. Reads of procfs and control groups only, which wait for no disk.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from hosts.cgroups import container_processes
from hosts.reading import read_text
from hosts.roots import Roots

TICKS = os.sysconf("SC_CLK_TCK")
_STOPPED = frozenset("Tt")
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Work:
    """Since each process began: seconds of CPU, bytes that came from disks (None: we may not know); bytes resident
    now. `processes` are those of the container, by the host's count, each with its start in clock ticks;
    `stopped` is whether all of them are stopped by a signal or a tracer."""

    cpu_s: float
    read_bytes: int | None
    resident: int
    processes: frozenset[tuple[int, int]]
    stopped: bool


def work_of(roots: Roots, container: str, pid: int) -> Work | None:
    """The work of a container, by one of its processes; None when that is gone, or another container's by now."""
    found = container_processes(roots, container, pid)
    if found is None:
        return None
    cpu, resident, read = 0.0, 0, 0
    known = True
    processes: set[tuple[int, int]] = set()
    states: list[str] = []
    for one in found:
        text = read_text(roots.proc / str(one) / "stat", 4096)
        if text is None:
            continue
        fields = text.rpartition(")")[2].split()
        if len(fields) < 22:
            continue
        states.append(fields[0])
        processes.add((one, int(fields[19])))
        cpu += sum(int(fields[at]) for at in (11, 12, 13, 14)) / TICKS  # its children that ended, too
        resident += int(fields[21]) * PAGE
        bytes_read = _read_bytes(read_text(roots.proc / str(one) / "io", 4096))
        known = known and bytes_read is not None
        read += bytes_read or 0
    if not processes:
        return None
    stopped = all(state in _STOPPED for state in states)
    return Work(cpu, read if known else None, resident, frozenset(processes), stopped)


def _read_bytes(text: str | None) -> int | None:
    for line in (text or "").splitlines():
        name, _, value = line.partition(":")
        if name == "read_bytes" and value.strip().isdigit():
            return int(value)
    return None
