"""Carrying out the barrier: look at processes and devices until `barrier` says that the memory is free, or gives up."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from containers import proc
from hosts.facts import HostFacts
from hosts.telemetry import Sample
from orchestrator.clock import Clock
from orchestrator.decision import Decision
from orchestrator.engine import Engine
from orchestrator.errors import EngineFailed
from orchestrator.events import Journal
from orchestrator.plan import Plan
from orchestrator.stopping import barrier, holders
from orchestrator.stopping.barrier import Barrier, DeviceLook, Look
from orchestrator.stopping.holders import Holder, Trace
from orchestrator.stopping.quarantine import Held, Quarantine, hint
from orchestrator.timing import Timing

KEPT = 64
"""Containers that have gone of which it is known what they had on devices."""


class Sightings:
    """What containers were seen to have on devices: a listener of the host's readings."""

    def __init__(self) -> None:
        self.newest: Sample | None = None
        self._traces: dict[str, dict[str, Trace]] = {}

    def on_sample(self, sample: Sample) -> None:
        """Take a reading."""
        self.newest = sample
        self._traces = holders.traces(sample, self._traces)
        present = {user.container for user in sample.users}
        gone = [container for container in self._traces if container not in present]
        for container in gone[: max(0, len(gone) - KEPT)]:
            del self._traces[container]

    def of(self, container: str) -> Mapping[str, Trace]:
        """What a container had, by device."""
        return self._traces.get(container, {})

    def forget(self, container: str) -> None:
        """It is gone, memory and all."""
        self._traces.pop(container, None)


class Clearing:
    """The barrier of one host."""

    def __init__(
        self,
        *,
        read: Callable[[], Awaitable[object]],
        facts: Callable[[], HostFacts],
        taken: Callable[[Plan], Collection[str]],
        sightings: Sightings,
        quarantine: Quarantine,
        journal: Journal,
        clock: Clock,
        timing: Timing,
        alive: Callable[[str], Sequence[Holder]] | None = None,
        still: Callable[[int, str], bool] = proc.in_container,
    ) -> None:
        """`read` takes a reading of the host, which `sightings` then has; `taken` says which GPUs a plan takes.

        `alive` says which processes a container has, and `still` whether it has this one: by default the kernel.
        """
        self._read = read
        self._facts = facts
        self._taken = taken
        self._sightings = sightings
        self._quarantine = quarantine
        self._journal = journal
        self._clock = clock
        self._timing = timing
        self._alive = alive or alive_in
        self._still = still
        self._given_up: dict[str, float] = {}
        """Containers that were given up once, with when their stop began (monotonic)."""

    async def wait(self, engine: Engine) -> None:
        """Return when nothing of the engine's container is left, on its devices or at all.

        Raises `EngineFailed` `wedged` with the holders when that takes longer than `timing.memory_free`; its devices
        are quarantined then. Asked again for such an engine it looks once.
        """
        container = engine.container_id
        if container is None:
            return
        again = container in self._given_up
        begun, looks, killed = self._given_up.get(container, self._clock.now()), list[Look](), False
        limit = self._timing.memory_free
        while True:
            looks = [*looks[-barrier.STABLE :], await self._look(engine, container, begun)]
            if again and barrier.over(looks[-1]):
                break
            decision = barrier.decide(looks, limit)
            if decision.action is Barrier.CLEAR:
                break
            if decision.action is Barrier.GIVE_UP:
                raise await self._give_up(engine, container, looks[-1], decision, begun)
            if decision.action is Barrier.KILL and not killed:
                killed = True
                await self._kill(engine, container, looks[-1].alive)
            await asyncio.sleep(self._timing.memory_step)
        self._cleared(engine, container, looks[-1], again=again)

    # looking

    async def _look(self, engine: Engine, container: str, begun: float) -> Look:
        alive = tuple(await asyncio.to_thread(self._alive, container))
        if engine.watch is not None and not engine.exited.is_set() and engine.pid not in {h.pid for h in alive}:
            alive = (*alive, Holder(engine.pid or 0, None, state="?"))  # the kernel has not told of its end yet
        devices = self._taken(engine.plan)
        sample = None
        if devices:
            with suppress(Exception):  # a reading that fails tells nothing; whoever reads the host says so
                await self._read()
                sample = self._sightings.newest
        at = self._clock.now() - begun
        return Look(at, alive, () if sample is None else self._devices(sample, container, devices))

    def _devices(self, sample: Sample, container: str, devices: Iterable[str]) -> tuple[DeviceLook, ...]:
        """The devices as a reading has them; one that cannot be read is left out, for nothing can be said of it."""
        unified = {gpu.pci for gpu in self._facts().accelerators if gpu.unified}
        found = []
        for device in sorted(devices):
            one, trace = sample.gpus.get(device), self._sightings.of(container).get(device)
            if one is None:
                continue
            before, now = None if trace is None else trace.nobodys, holders.nobodys(sample, device)
            lost = None if before is None or now is None or device in unified else max(0, now - before)
            mine = None if one.processes is None else holders.listed(sample, device, container, trace)
            had = None if trace is None else trace.memory
            found.append(DeviceLook(device, mine, one.memory_free, lost=lost, had=had, unified=device in unified))
        return tuple(found)

    def _now(self, sample: Sample, *, container: str, device: str, who: Sequence[Holder]) -> Look:
        """A quarantined device by a reading of the host. No look at all processes: this runs on the loop."""
        left = tuple(holder for holder in who if self._still(holder.pid, container))
        return Look(0.0, left, self._devices(sample, container, [device]))

    # what follows

    def _cleared(self, engine: Engine, container: str, look: Look, *, again: bool) -> None:
        self._given_up.pop(container, None)
        self._sightings.forget(container)
        for held in self._quarantine.of(container):
            self._quarantine.release(held)
        if look.devices or again:
            self._journal.emit(
                "stop",
                "memory_free",
                f"{engine.name}: its memory is free again after {look.at:.1f} s",
                deployment=engine.deployment,
                evidence={
                    "generation": engine.generation,
                    "after_s": round(look.at, 3),
                    "free_bytes": {one.device: one.free for one in look.devices},
                },
            )

    async def _kill(self, engine: Engine, container: str, alive: Sequence[Holder]) -> None:
        await asyncio.to_thread(kill, container, [holder.pid for holder in alive])
        self._journal.emit(
            "stop",
            "left_over_killed",
            f"{engine.name}: its container is removed, and {holders.told(alive)} went on: killed",
            deployment=engine.deployment,
            evidence={"generation": engine.generation, "holders": holders.evidence(alive)},
        )

    async def _give_up(
        self, engine: Engine, container: str, look: Look, decision: Decision[Barrier], begun: float
    ) -> EngineFailed:
        listed = {holder.pid: holder for device in look.devices for holder in device.listed or ()}
        alive = {holder.pid: holder for holder in look.alive if holder.pid not in listed}
        who = (*await asyncio.to_thread(with_states, tuple(listed.values())), *alive.values())
        devices = [d.device for d in look.devices if look.alive or d.listed or decision.reason != "processes_left"]
        evidence = {**decision.evidence, "reason": decision.reason, "devices": devices}
        if container not in self._given_up:
            self._given_up[container] = begun
            for device in devices:
                now = partial(self._now, container=container, device=device, who=who)
                held = Held(device, engine.name, container, engine.deployment, who, now)
                self._quarantine.hold(held, evidence)
        where = f" on GPU {', '.join(devices)}" if devices else ""
        what = "memory is held" if where else "processes go on"
        return EngineFailed(
            "wedged",
            f"{engine.name} was removed and its {what}{where}: {holders.told(who)}",
            retryable=False,
            hint=hint(who),
            evidence={**evidence, "holders": holders.evidence(who)},
        )


def alive_in(container: str) -> tuple[Holder, ...]:
    """The live processes of a container, by the kernel's word. Blocks for some milliseconds."""
    return tuple(described(one) for one in proc.members(container))


def described(one: proc.Process) -> Holder:
    """A process as a holder of something: what it is, and what it waits for."""
    return Holder(one.pid, one.command, state=one.state, waits=proc.waits_in(one.pid))


def kill(container: str, pids: Iterable[int]) -> None:
    """Kill these processes if they are that container's, whoever has their pids by now. Blocks for a moment."""
    for pid in pids:
        with suppress(OSError):
            handle = os.pidfd_open(pid)
            try:
                if proc.in_container(pid, container):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)


def with_states(users: Sequence[Holder]) -> tuple[Holder, ...]:
    """Holders that the driver lists, with what the kernel says of them."""
    found = []
    for holder in users:
        one = proc.process(holder.pid)
        known = one is not None and one.alive
        state = one.state if one is not None and known else None
        found.append(replace(holder, state=state, waits=proc.waits_in(holder.pid) if known else None))
    return tuple(found)
