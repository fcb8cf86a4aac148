"""What the processes of a container do, as the kernel counts it: CPU, bytes from disks, memory, stopped or not.

An engine that says nothing may compile, read its weights from a slow disk, or be dead: here that shows, whatever
its HTTP server says. Reads of procfs and control groups only, which wait for no disk.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

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
    `stopped` is whether all of them are stopped by a signal or a tracer. `cpu_of` is the CPU of each, by its number;
    `written_bytes` are those that went to disks (not to pipes, sockets or memory file systems; None: we may not know).
    """

    cpu_s: float
    read_bytes: int | None
    resident: int
    processes: frozenset[tuple[int, int]]
    stopped: bool
    cpu_of: Mapping[int, float] = field(default_factory=dict)
    written_bytes: int | None = None


def work_of(roots: Roots, container: str, pid: int) -> Work | None:
    """The work of a container, by one of its processes; None when that is gone, or another container's by now."""
    found = container_processes(roots, container, pid)
    if found is None:
        return None
    resident, read, written = 0, 0, 0
    cpu: dict[int, float] = {}
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
        cpu[one] = sum(int(fields[at]) for at in (11, 12, 13, 14)) / TICKS  # its children that ended, too
        resident += int(fields[21]) * PAGE
        moved = _disk_bytes(read_text(roots.proc / str(one) / "io", 4096))
        known = known and moved is not None
        read, written = read + (moved or (0, 0))[0], written + (moved or (0, 0))[1]
    if not processes:
        return None
    stopped = all(state in _STOPPED for state in states)
    return Work(
        cpu_s=sum(cpu.values()),
        read_bytes=read if known else None,
        resident=resident,
        processes=frozenset(processes),
        stopped=stopped,
        cpu_of=cpu,
        written_bytes=written if known else None,
    )


def _disk_bytes(text: str | None) -> tuple[int, int] | None:
    """Read and written."""
    found = dict(line.split(": ", 1) for line in (text or "").splitlines() if ": " in line)
    try:
        return int(found["read_bytes"]), int(found["write_bytes"])
    except (KeyError, ValueError):
        return None
