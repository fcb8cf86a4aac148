"""What the machine itself does at the moment: memory, and how long tasks wait for it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hosts.facts import Memory
from hosts.reading import read_text
from hosts.roots import Roots

_AVERAGE = re.compile(r"^(some|full) avg10=(\d{1,3}\.\d{2}) ", re.MULTILINE)


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
    some, full = pressure(roots, "memory")
    return HostSample(
        memory_total=memory.total,
        memory_available=memory.available,
        memory_some=some,
        memory_full=full,
        cpu_some=pressure(roots, "cpu")[0],
        io_full=pressure(roots, "io")[1],
    )


def pressure(roots: Roots, of: str) -> tuple[float | None, float | None]:
    """`(some, full)`: percent of the last ten seconds, by /proc/pressure."""
    found = dict(_AVERAGE.findall(read_text(roots.proc / "pressure" / of, 4096) or ""))
    return _percent(found.get("some")), _percent(found.get("full"))


def _percent(text: str | None) -> float | None:
    value = None if text is None else float(text)
    return value if value is not None and value <= 100 else None
