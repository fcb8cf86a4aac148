"""Hosts for planner tests, as plain facts."""

from __future__ import annotations

from hosts.facts import Cpu, HostFacts, Memory

GIB = 1 << 30


def cpu_host(*, host: str = "box", available: int = 8 * GIB, threads: int = 4) -> HostFacts:
    """A machine without a GPU."""
    memory = Memory(total=max(available, 16 * GIB), available=available)
    return HostFacts(host=host, os=None, kernel=None, cpu=Cpu(None, "x86_64", threads), memory=memory)
