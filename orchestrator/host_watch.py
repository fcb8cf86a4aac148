"""What the daemon knows of its own host: probed once, what changes read again and again.

Probing and reading block (NVML, sysfs), so both run in threads with deadlines; what could not
be read keeps its last value and shows as a problem.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence

from hosts import amd_sysfs, cdi, gpu_users, nvidia
from hosts.device_health import Health, Verdict
from hosts.facts import QUARANTINED, Accelerator, HostFacts, Problem
from hosts.probe import probe
from hosts.ring import Ring
from hosts.roots import Roots
from hosts.telemetry import HOST, Sample, Telemetry
from orchestrator import telemetry
from orchestrator.clock import Clock, SystemClock
from orchestrator.telemetry import Reading, TelemetryView, Watched
from orchestrator.timing import Timing


class HostWatch:
    """The host's facts, kept fresh, and the last samples of what it does."""

    def __init__(self, facts: HostFacts, timing: Timing, roots: Roots, clock: Clock | None = None) -> None:
        self._facts = facts
        self._timing = timing
        self._roots = roots
        self._clock = clock or SystemClock()
        self._ring: Ring[Reading] = Ring(timing.telemetry_samples)
        self._engines: Callable[[], Sequence[Watched]] = list
        self._telemetry = Telemetry(roots, retry=timing.device_look)
        self.listeners: list[Callable[[Sample], None]] = []
        """Called with each reading, on the loop."""
        self.probed: list[Callable[[], None]] = []
        """Called when the whole machine was looked at again, on the loop."""
        self._reading = asyncio.Lock()
        self._own: tuple[Problem, ...] = ()
        self._probes = 0
        self._quarantined: dict[str, str] = {}
        self._read_at = {a.pci: self._clock.now() for a in facts.accelerators}
        """When each GPU answered last (monotonic)."""
        self._cdi: cdi.Signature | None = None
        """The CDI files as they were before the last look at the machine; None: nobody knows."""

    @classmethod
    async def start(cls, name: str | None, timing: Timing, roots: Roots, clock: Clock | None = None) -> HostWatch:
        """Probe the host; `name` overrides what it calls itself."""
        signature = await asyncio.to_thread(cdi.signature, roots)
        facts = await asyncio.to_thread(probe, roots, deadline=timing.probe_call)
        if name is not None:
            facts = dataclasses.replace(facts, host=name)
        watch = cls(facts, timing, roots, clock)
        watch._cdi = signature
        return watch

    def facts(self) -> HostFacts:
        """The facts with the last reading of free memory."""
        if not self._quarantined:
            return self._facts
        return dataclasses.replace(
            self._facts, accelerators=tuple(_left_alone(a, self._quarantined) for a in self._facts.accelerators)
        )

    def shown(self) -> HostFacts:
        """The facts for a person: each GPU with `age_s`, the seconds since it answered last, and `stale`, whether
        that is too long ago to rely on. A driver that hangs leaves the last facts as they are, and old."""
        facts, now = self.facts(), self._clock.now()
        return dataclasses.replace(
            facts, accelerators=tuple(self._aged(a, now - self._read_at.get(a.pci, now)) for a in facts.accelerators)
        )

    def _aged(self, gpu: Accelerator, age: float) -> Accelerator:
        stale = age > self._timing.reading_stale
        return dataclasses.replace(gpu, details={**gpu.details, "age_s": round(age, 1), "stale": stale})

    def _answered(self, gpus: Iterable[str]) -> None:
        self._read_at |= dict.fromkeys(gpus, self._clock.now())

    def set_quarantined(self, devices: Mapping[str, str]) -> None:
        """Show which GPUs are left alone for now, by PCI address, each with its sentence."""
        self._quarantined = dict(devices)

    def watch(self, engines: Callable[[], Sequence[Watched]]) -> None:
        """Say whose memory and processes are to be told from strangers' from now on."""
        self._engines = engines

    def telemetry(self, since: int = 0, limit: int | None = None) -> Sequence[TelemetryView]:
        """The samples after `since` (see `hosts.ring`), oldest first; of more than `limit` the newest."""
        return [telemetry.view(entry) for entry in self._ring.since(since, limit)]

    async def read(self) -> None:
        """Read now: free memory, and all else that changes."""
        async with self._reading:
            engines = self._engines()
            asked = {e.container_id: e.pid for e in engines}
            sample = await asyncio.to_thread(self._telemetry.sample, self._facts, self._timing.probe_call, asked)
            last = self._ring.newest
            reading = telemetry.read(sample, engines, None if last is None else last.value)
            self._answered(sample.gpus)
            self._ring.add(reading, at=self._clock.now(), wall=self._clock.wall())
            now = self._facts  # others may have changed them meanwhile
            self._facts = dataclasses.replace(
                now,
                memory=dataclasses.replace(now.memory, available=sample.free.get(HOST, now.memory.available)),
                accelerators=tuple(telemetry.refreshed(a, sample) for a in now.accelerators),
            )
        for listener in self.listeners:
            listener(sample)

    async def probe(self) -> None:
        """Look at the whole machine again: a device may have come. Who asks meanwhile shares the answer."""
        before = self._probes
        async with self._reading:
            if self._probes != before:
                return
            self._cdi = await asyncio.to_thread(cdi.signature, self._roots)
            found = await asyncio.to_thread(probe, self._roots, deadline=self._timing.probe_call)
            now = {a.pci for a in found.accelerators}
            self._answered(now)
            # one of NVIDIA's that is silent now stays known, as in `renew`: whoever watches it says that it is lost;
            # one of AMD's where its files gave no answer
            mute = {nvidia.VENDOR, *(p.vendor for p in found.problems if p.code == amd_sysfs.TIMEOUT)}
            silent = (a for a in self._facts.accelerators if a.vendor in mute and a.pci not in now)
            self._facts = dataclasses.replace(
                found,
                host=self._facts.host,
                accelerators=(*found.accelerators, *silent),
                problems=(*found.problems, *self._own),
            )
            self._probes += 1
            for listener in self.probed:
                listener()

    async def freshen(self) -> None:
        """Before a plan: look at the machine again if what containers can be given may be other than the facts say.

        That is so when CDI files came, went or changed since the last look, and when a GPU had no name to give.
        """
        unnamed = any(not a.devices for a in self._facts.accelerators)
        if unnamed or await asyncio.to_thread(cdi.signature, self._roots) != self._cdi:
            await self.probe()

    def add_problem(self, problem: Problem) -> None:
        """Something the daemon itself found out about the host."""
        self._own = (*self._own, problem)
        self._facts = dataclasses.replace(self._facts, problems=(*self._facts.problems, problem))

    def set_health(self, verdicts: Mapping[str, Verdict]) -> None:
        """Show how each GPU is. Nothing may be planned into one that is gone, however much it still claims to have."""
        self._facts = dataclasses.replace(
            self._facts,
            accelerators=tuple(
                _judged(a, verdicts[a.pci]) if a.pci in verdicts else a for a in self._facts.accelerators
            ),
        )

    async def renew(self) -> bool:
        """Ask NVIDIA's driver for its GPUs anew; whether it answered with any. GPUs known before stay known."""
        async with self._reading:
            memory, seconds = self._facts.memory, self._timing.probe_call
            found = await asyncio.to_thread(nvidia.probe_again, self._roots, os.environ, memory, seconds)
            if found is None:
                return False
            others = [a for a in self._facts.accelerators if a.vendor != nvidia.VENDOR]
            before = [a for a in self._facts.accelerators if a.vendor == nvidia.VENDOR]
            now = {a.pci for a in found.accelerators}
            self._answered(now)
            mine = (
                *(gpu_users.named(self._roots, a) for a in found.accelerators),
                *(a for a in before if a.pci not in now),
            )
            problems = [p for p in self._facts.problems if p.vendor != nvidia.VENDOR]
            self._facts = dataclasses.replace(
                self._facts, accelerators=(*mine, *others), problems=(*problems, *found.problems)
            )
            return bool(found.accelerators)

    async def close(self) -> None:
        await asyncio.to_thread(self._telemetry.close)


def _left_alone(gpu: Accelerator, quarantined: Mapping[str, str]) -> Accelerator:
    text = quarantined.get(gpu.pci)
    return gpu if text is None else dataclasses.replace(gpu, details={**gpu.details, QUARANTINED: text})


def _judged(gpu: Accelerator, verdict: Verdict) -> Accelerator:
    details = {k: v for k, v in gpu.details.items() if k != "health_reason"}
    details["health"] = verdict.health.value
    if verdict.health is not Health.OK:
        details["health_reason"] = verdict.reason
    lost = verdict.health is Health.LOST
    return dataclasses.replace(gpu, details=details, memory_free=None if lost else gpu.memory_free)
