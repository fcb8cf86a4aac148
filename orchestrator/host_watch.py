"""What the daemon knows of its own host: probed once, its free memory read again and again.

Probing and reading block (NVML, sysfs), so both run in threads with deadlines; what could not
be read keeps its last value and shows as a problem.
"""

from __future__ import annotations

import asyncio
import dataclasses

from hosts.facts import HostFacts, Problem
from hosts.probe import probe
from hosts.roots import Roots
from hosts.telemetry import HOST, Telemetry
from orchestrator.timing import Timing


class HostWatch:
    """The host's facts, kept fresh."""

    def __init__(self, facts: HostFacts, timing: Timing, roots: Roots) -> None:
        self._facts = facts
        self._timing = timing
        self._telemetry = Telemetry(roots)
        self._reading = asyncio.Lock()

    @classmethod
    async def start(cls, name: str | None, timing: Timing, roots: Roots) -> HostWatch:
        """Probe the host; `name` overrides what it calls itself."""
        facts = await asyncio.to_thread(probe, roots, deadline=timing.probe_call)
        if name is not None:
            facts = dataclasses.replace(facts, host=name)
        return cls(facts, timing, roots)

    def facts(self) -> HostFacts:
        """The facts with the last reading of free memory."""
        return self._facts

    async def read(self) -> None:
        """Read free memory now."""
        async with self._reading:
            before = self._facts
            sample = await asyncio.to_thread(self._telemetry.sample, before, self._timing.probe_call)
            self._facts = dataclasses.replace(
                before,
                memory=dataclasses.replace(before.memory, available=sample.free.get(HOST, before.memory.available)),
                accelerators=tuple(
                    dataclasses.replace(a, memory_free=sample.free.get(a.pci, a.memory_free))
                    for a in before.accelerators
                ),
            )

    def add_problem(self, problem: Problem) -> None:
        """Something the daemon itself found out about the host."""
        self._facts = dataclasses.replace(self._facts, problems=(*self._facts.problems, problem))

    async def close(self) -> None:
        await asyncio.to_thread(self._telemetry.close)
