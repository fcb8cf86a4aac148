"""What the machine itself does at the moment: memory, and how long tasks wait for it."""

from __future__ import annotations

from dataclasses import dataclass

from hosts.facts import Memory
from hosts.pressure import waited
from hosts.roots import Roots


@dataclass(frozen=True, slots=True)
class HostSample:
    """Bytes, and the share of the last ten seconds (percent) in which some task, or all of them, waited for memory
    (`memory_some`, `memory_full`), for a processor or for a disk. None where the kernel does not tell (PSI is off)."""

    memory_total: int
    memory_available: int
    memory_some: float | None = None
    memory_full: float | None = None
    cpu_some: float | None = None
    io_full: float | None = None


def read_host(roots: Roots, memory: Memory) -> HostSample:
    """Three small files of /proc."""
    some, full = waited(roots, "memory")
    return HostSample(
        memory_total=memory.total,
        memory_available=memory.available,
        memory_some=some,
        memory_full=full,
        cpu_some=waited(roots, "cpu")[0],
        io_full=waited(roots, "io")[1],
    )
