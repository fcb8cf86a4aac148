"""What every machine has: a processor, memory, an operating system, a name."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field

from hosts.facts import Cpu, Memory, Platform, Problem
from hosts.reading import key_values, number, read_text
from hosts.roots import Roots

GIB = 1024**3
RESERVE = 8 * GIB
_CPUINFO_LIMIT = 4 * 1024 * 1024  # 512 threads write some 800 kB


@dataclass(frozen=True, slots=True)
class System:
    """The host without its accelerators."""

    host: str
    os: str | None
    kernel: str | None
    cpu: Cpu
    memory: Memory
    platform: Platform = field(default_factory=Platform)
    problems: tuple[Problem, ...] = ()


def reserve(memory_total: int) -> int:
    """Bytes of system memory that engines on a unified-memory GPU must leave to the host.

    8 GiB, the figure that machines of 128 GB are run with; on machines below
    64 GiB an eighth, since 8 GiB would leave nothing.
    """
    return min(RESERVE, memory_total // 8)


def read_system(roots: Roots) -> System:
    """All of it; what cannot be read is None, or said in `problems`."""
    memory, problems = read_memory(roots)
    return System(
        host=read_text(roots.proc / "sys/kernel/hostname", 1024) or platform.node() or "localhost",
        os=_os_name(roots),
        kernel=read_text(roots.proc / "sys/kernel/osrelease", 1024) or os.uname().release,
        cpu=_cpu(roots),
        memory=memory,
        problems=problems,
    )


def read_memory(roots: Roots) -> tuple[Memory, tuple[Problem, ...]]:
    """MemTotal and MemAvailable in bytes; the C library's figures where /proc/meminfo is unreadable."""
    lines = key_values(read_text(roots.proc / "meminfo"), ":")
    total = _kib(lines.get("MemTotal"))
    available = _kib(lines.get("MemAvailable"))
    if available is None:  # kernels before 3.14, and some sandboxes
        available = _kib(lines.get("MemFree"))
    if total and available is not None:
        return Memory(total, min(available, total)), ()
    page = os.sysconf("SC_PAGE_SIZE")
    fallback = Memory(os.sysconf("SC_PHYS_PAGES") * page, os.sysconf("SC_AVPHYS_PAGES") * page)
    return fallback, (
        Problem(
            code="meminfo_unreadable",
            vendor=None,
            detail=f"{roots.proc / 'meminfo'} does not say MemTotal and MemAvailable",
            hint="available memory is taken without the page cache and is too small",
        ),
    )


def _kib(value: str | None) -> int | None:
    found = number(value)
    return None if found is None or found < 0 else found * 1024


def _os_name(roots: Roots) -> str | None:
    for path in (roots.etc / "os-release", roots.usr / "lib/os-release"):
        fields = key_values(read_text(path), "=")
        name = fields.get("PRETTY_NAME") or fields.get("NAME")
        if name:
            return name.strip("\"'") or None
    return None


def _cpu(roots: Roots) -> Cpu:
    text = read_text(roots.proc / "cpuinfo", _CPUINFO_LIMIT)
    fields = key_values(text, ":")
    flags = fields.get("flags") or fields.get("Features") or ""
    return Cpu(
        # Arm kernels name no model there; boards say it in the device tree
        model=fields.get("model name")
        or fields.get("Model")
        or read_text(roots.proc / "device-tree/model", 1024)
        or None,
        arch=platform.machine(),
        threads=_threads(roots, text),
        flags=tuple(flags.split()),
    )


def _threads(roots: Roots, cpuinfo: str | None) -> int:
    """The threads this process may run on: its affinity, as the kernel writes it."""
    status = key_values(read_text(roots.proc / "self/status"), ":")
    allowed = _count_list(status.get("Cpus_allowed_list", ""))
    if allowed:
        return allowed
    listed = sum(1 for line in (cpuinfo or "").splitlines() if line.startswith("processor"))
    return listed or len(os.sched_getaffinity(0))


def _count_list(text: str) -> int:
    """How many numbers a kernel list such as `0-7,16-23` names; 0 if it is none."""
    count = 0
    for part in text.split(","):
        first, _, last = part.partition("-")
        low, high = number(first), number(last or first)
        if low is None or high is None or not 0 <= low <= high < 65536:
            return 0
        count += high - low + 1
    return count
