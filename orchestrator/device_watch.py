"""Watching the GPUs: what they report and what readings find becomes verdicts, issues and holds.

    NVML's events --+
    kernel's log  --+-> DeviceWatch --> issues and journal, health in the host's facts,
    readings      --+                   holds (`device_gate`), engines that fail with their GPU

What an event or a reading means is `hosts.device_health`; whether a start must wait and whose engine an
event names is `device_policy`. Everything here runs on the event loop; sources have threads of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

import structlog

from hosts import device_health
from hosts.device_events import DeviceEvent
from hosts.device_health import ABSENT, MISSES, WELL, DeviceState, Health, Verdict
from hosts.facts import HostFacts, Problem
from hosts.nvidia_errors import CODES
from hosts.telemetry import Sample
from orchestrator.actor import Actor
from orchestrator.clock import Clock
from orchestrator.device_gate import DeviceGate
from orchestrator.device_policy import NVIDIA
from orchestrator.device_reports import Processes, Reports
from orchestrator.engine import Engine
from orchestrator.errors import EngineFailed
from orchestrator.events import Journal
from orchestrator.issues import HOST, Issues
from orchestrator.views import State

_ISSUES: Mapping[Health, str] = {
    Health.THROTTLED: "gpu_throttled",
    Health.DEGRADED: "gpu_degraded",
    Health.LOST: "gpu_lost",
}
_BROKEN = frozenset({Health.LOST, Health.DRIVER_MISMATCH})
log = structlog.get_logger("devices")


class Source(Protocol):
    """Where events come from: delivers them from a thread of its own."""

    def start(self) -> Problem | None:
        """Begin; a problem where it cannot."""

    def close(self) -> None:
        """End it, and its thread."""


class Host(Protocol):
    """What of the host's facts is needed (`orchestrator.host_watch`)."""

    def facts(self) -> HostFacts: ...
    def add_problem(self, problem: Problem) -> None: ...
    def set_health(self, verdicts: Mapping[str, Verdict]) -> None:
        """Show in the facts how each GPU is."""

    async def renew(self) -> bool:
        """Ask NVIDIA's driver for the facts again; whether it answered with a GPU."""


@dataclass(frozen=True, slots=True)
class Tools:
    """What the watch is made with."""

    host: Host
    gate: DeviceGate
    journal: Journal
    issues: Issues
    clock: Clock
    actors: Callable[[], Sequence[Actor]]
    processes: Processes
    sources: Sequence[Callable[[Callable[[DeviceEvent], None]], Source]]
    """Each is made with what it is to call."""
    module: Callable[[], object]
    """Which load of NVIDIA's kernel module this is."""
    claim: Callable[[Sequence[str]], None] = lambda _: None
    """Take the locks of GPUs that were not there when the daemon started."""


class DeviceWatch:
    """One a host. `on_sample` after each reading, `look` now and then; `close` when done."""

    def __init__(self, tools: Tools) -> None:
        self._t = tools
        self._states: dict[str, DeviceState] = {}
        self._sources: list[Source] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reports = Reports(tools.journal, tools.clock, tools.processes, self._engines, tools.gate.taken)
        self._tasks: set[asyncio.Task[None]] = set()
        self._module = tools.module()
        self._due = False
        """Whether the facts are to be read anew."""
        facts = tools.host.facts()
        self._claimed = {a.pci for a in facts.accelerators}
        """GPUs whose locks were asked for: they are held until the daemon ends."""
        self._know(facts)
        self._problems(facts.problems, answered=frozenset())
        self._judge()

    async def _listen(self) -> None:
        """Begin to listen. That a source is closed to us is a problem where there are GPUs."""
        self._loop = asyncio.get_running_loop()
        for make in self._t.sources:
            source = make(self.deliver)
            self._sources.append(source)
            problem = await asyncio.to_thread(source.start)
            if problem is not None and self._states:
                self._t.host.add_problem(problem)

    async def close(self) -> None:
        """End the sources and their threads."""
        self._loop = None
        for source in self._sources:
            await asyncio.to_thread(source.close)
        self._sources.clear()
        self._reports.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    # what comes in

    def deliver(self, event: DeviceEvent) -> None:
        """An event, from any thread."""
        loop = self._loop
        if loop is not None:
            try:
                loop.call_soon_threadsafe(self.take, event)
            except RuntimeError:  # the loop has ended
                log.debug("event_too_late", kind=event.kind)

    def take(self, event: DeviceEvent) -> None:
        """An event, on the loop."""
        if not self._reports.take(event) and not device_health.recovered(event):
            return
        if event.pci in self._states:
            self._states[event.pci] = device_health.happened(self._states[event.pci], event)
        self._judge()

    def on_sample(self, sample: Sample) -> None:
        """A reading of the host."""
        self._notice_module()
        for where, one in sample.gpus.items():
            if where in self._states:
                self._states[where] = device_health.read(self._states[where], one)
        self._problems(sample.problems, answered=frozenset(sample.gpus))
        self._miss(sample)
        self._reports.remember(sample)
        before = dict(self._t.gate.verdicts)
        self._judge()
        after = self._t.gate.verdicts
        # another driver may be another version: the facts are read anew
        self._due |= any(v.health in _BROKEN and after[pci].health not in _BROKEN for pci, v in before.items())

    async def look(self) -> None:
        """Now and then: a driver that was absent or broken may be there, and facts may be old.

        While the facts have NVIDIA's GPUs the readings find out by themselves. The first look begins to listen.
        """
        if self._loop is None:
            await self._listen()
        facts = self._t.host.facts()
        known = {a.pci for a in facts.accelerators}
        unseen = any(pci not in known for pci in self._states)
        if not (self._due or unseen or not any(a.vendor == NVIDIA for a in facts.accelerators)):
            return
        self._due = False
        found = await self._t.host.renew()
        facts = self._t.host.facts()
        self._notice_module()
        self._greet([a.pci for a in facts.accelerators if a.pci not in known])
        self._know(facts)
        well = frozenset(a.pci for a in facts.accelerators if a.vendor == NVIDIA and found)
        for pci in well:
            self._states[pci] = device_health.answers(self._states[pci])
        self._problems(facts.problems, answered=well)
        if found:
            self._drop({a.pci for a in facts.accelerators} | {p.device for p in facts.problems})
        self._judge()

    def on_probe(self) -> None:
        """The whole machine was looked at again, because a model waits for a device."""
        facts = self._t.host.facts()
        self._greet([a.pci for a in facts.accelerators if a.pci not in self._states])
        self._know(facts)
        self._judge()

    def _greet(self, new: Sequence[str]) -> None:
        """GPUs that were not there before."""
        if claims := [pci for pci in new if pci not in self._claimed]:
            self._claimed.update(claims)
            self._t.claim(claims)
        for pci in new:
            self._t.journal.emit("device", "gpu_found", f"GPU {pci} is here now", evidence={"gpu": pci})

    def _drop(self, kept: Set[str | None]) -> None:
        """A GPU that was broken when the host was probed may turn out to be another, or is gone for good."""
        for pci in [pci for pci in self._states if pci not in kept]:
            del self._states[pci]
            self._t.gate.verdicts.pop(pci, None)
            for code in _ISSUES.values():
                self._t.issues.close(code, pci, f"GPU {pci} is no longer there")

    def _engines(self) -> list[Engine]:
        return [engine for actor in self._t.actors() for engine in actor.deployment.live()]

    # from what came in to states

    def _know(self, facts: HostFacts) -> None:
        for gpu in facts.accelerators:
            self._states.setdefault(gpu.pci, DeviceState())
            self._t.gate.vendors[gpu.pci] = gpu.vendor

    def _problems(self, problems: Sequence[Problem], answered: frozenset[str]) -> None:
        """What went wrong, for each GPU that it is about: one, or all of a vendor that gave no answer."""
        now, gate = self._t.clock.now(), self._t.gate
        whole = [p for p in problems if p.device is None and p.vendor is not None]
        driver = next((p for p in whole if p.vendor == NVIDIA and p.code in CODES), None)
        mismatch = driver is not None and driver.code == Health.DRIVER_MISMATCH.value
        if driver is not None and mismatch:
            gate.mismatch = Verdict(Health.DRIVER_MISMATCH, driver.code, driver.detail, driver.hint)
        elif driver is not None or any(gate.vendors.get(pci) == NVIDIA for pci in answered):
            gate.mismatch = None
        for problem in problems:
            if problem.device is not None and problem.code == "gpu_lost":
                gate.vendors.setdefault(problem.device, problem.vendor or NVIDIA)
                self._states.setdefault(problem.device, DeviceState())
        for pci, state in self._states.items():
            own = next((p for p in problems if p.device == pci and p.code in CODES), None)
            vendor = gate.vendors.get(pci)
            wrong = own or (driver if vendor == NVIDIA else next((p for p in whole if _stuck(p, vendor)), None))
            if wrong is not None and pci not in answered:
                self._states[pci] = device_health.failed(state, wrong.code, wrong.detail, wrong.hint, now)

    def _miss(self, sample: Sample) -> None:
        """GPUs of which an answer without any problem says nothing: the driver lists them no longer."""
        if any(p.vendor in (None, NVIDIA) for p in sample.problems):
            return
        for gpu in self._t.host.facts().accelerators:
            if gpu.vendor == NVIDIA and gpu.pci not in sample.gpus:
                state = self._states[gpu.pci]
                code = "gpu_lost" if state.misses >= MISSES - 1 or state.gone is not None else "gpu_missing"
                text = f"the driver no longer lists GPU {gpu.pci}"
                hint = "check power and seating, then reboot"
                self._states[gpu.pci] = device_health.failed(state, code, text, hint, self._t.clock.now())

    def _notice_module(self) -> None:
        """A kernel module that was loaded anew knows nothing of what was before."""
        module = self._t.module()
        if module != self._module:
            self._module = module
            for pci in self._states:
                if self._t.gate.vendors.get(pci) == NVIDIA:
                    self._states[pci] = device_health.renewed(self._states[pci])

    # from states to what follows

    def _judge(self) -> None:
        """Give each GPU its verdict, and act on those that changed."""
        now, gate = self._t.clock.now(), self._t.gate
        before = dict(gate.verdicts)
        for pci, state in self._states.items():
            gate.verdicts[pci] = device_health.verdict(state, now)
        self._t.host.set_health(gate.verdicts)
        for pci, verdict in gate.verdicts.items():
            self._show(pci, before.get(pci, WELL), verdict)
            self._tell_users(pci, before.get(pci, WELL), verdict)
            if verdict.health is Health.LOST:
                self._fail_engines(pci, verdict)
        self._show_mismatch()
        for actor in self._t.actors():
            if actor.deployment.barred != gate.bar(actor.deployment):
                actor.wake()

    def _show(self, pci: str, before: Verdict, verdict: Verdict) -> None:
        code = _ISSUES.get(verdict.health)
        for other in _ISSUES.values():
            if other != code:
                self._t.issues.close(other, pci)
        if code is None or verdict == before:
            return
        self._t.issues.open(
            code,
            pci,
            f"GPU {pci}: {verdict.text}",
            hint=verdict.hint,
            evidence={"reason": verdict.reason, **verdict.evidence},
        )

    def _tell_users(self, pci: str, before: Verdict, verdict: Verdict) -> None:
        """The stories of those whose engines run on it. That it is not well ends nothing: they may serve as before."""
        ill, was = verdict.health is Health.DEGRADED, before.health is Health.DEGRADED
        if ill == was or verdict.health is Health.LOST:
            return
        name = self._t.gate.named(pci)
        for engine in self._engines():
            if pci not in self._t.gate.taken(engine.plan):
                continue
            self._t.journal.emit(
                "device",
                "gpu_unwell" if ill else "gpu_well",
                f"{name} is not well: {verdict.text}; nothing is stopped for it" if ill else f"{name} is well again",
                deployment=engine.deployment,
                evidence={"gpu": pci, "reason": verdict.reason, **verdict.evidence} if ill else {"gpu": pci},
            )

    def _show_mismatch(self) -> None:
        mismatch, code = self._t.gate.mismatch, Health.DRIVER_MISMATCH.value
        if mismatch is None:
            self._t.issues.close(code, HOST)
        elif not self._t.issues.holds(code, HOST):
            self._t.issues.open(
                code, HOST, f"{mismatch.text}: no engine is started on it, those that run go on", hint=mismatch.hint
            )

    def _fail_engines(self, pci: str, verdict: Verdict) -> None:
        """The GPU is gone: its engines are of no use any more, whether their processes noticed or not."""
        if verdict.reason in ABSENT:
            return  # an engine that runs has the driver that it began with
        error = EngineFailed(
            "gpu_lost",
            self._t.gate.loss(pci, verdict),
            hint=verdict.hint,
            evidence={"gpu": pci, "reason": verdict.reason, **verdict.evidence},
        )
        for actor in self._t.actors():
            live = [e for e in actor.deployment.live() if e.state not in (State.FAILED, State.STOPPING)]
            lost = [e.generation for e in live if e.verdict is None and pci in self._t.gate.taken(e.plan)]
            if lost:
                task = asyncio.get_running_loop().create_task(actor.fail_engines(lost, error), name=f"lost-{pci}")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)


def _stuck(problem: Problem, vendor: str | None) -> bool:
    """Whether a vendor's files could not be read at all (AMD)."""
    return problem.vendor == vendor and problem.code.endswith("_timeout")
