"""Memory for engines: what is free, what is promised, what engines have taken, and one queue a device.

An engine that still loads has not taken its memory yet, so what is free now is not free
for the next one: each start reserves its expected bytes until it is ready. The queue
serialises reservations, not loads. A claim lives from the promise until the engine's memory
is seen to be free again: whoever takes it down forgets it last.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hosts.facts import HostFacts
from orchestrator.device_policy import SHARED
from orchestrator.device_queue import DeviceQueues
from orchestrator.errors import DoesNotFit
from orchestrator.kinds import Backend
from orchestrator.memory_fit import reserve
from orchestrator.plan import Plan

HOST = "host"
"""The device key of system memory: engines on the CPU and on unified memory."""


def devices_of(plan: Plan, facts: HostFacts) -> tuple[str, ...]:
    """Keys of the devices whose memory the plan takes, in PCI order: PCI addresses, or `host`.

    A plan that names device nodes takes the accelerators that list them; unified memory is
    the host's own.
    """
    if not plan.devices:
        return (HOST,)
    taken = sorted(a.pci for a in facts.accelerators if not a.unified and (set(a.devices) - SHARED) & set(plan.devices))
    return tuple(taken) or (HOST,)


def host_reserve(facts: HostFacts) -> int:
    """Bytes of system memory never promised to an engine: what the planner leaves alone too."""
    return reserve(Backend.CPU, unified=False, total=facts.memory.total)


def free_bytes(device: str, facts: HostFacts, kept: int | None = None) -> int | None:
    """What the device has left by the host's last reading; None when unknown. `kept` bytes of system memory
    are left alone, by default `host_reserve`."""
    if device == HOST:
        return max(0, facts.memory.available - (host_reserve(facts) if kept is None else kept))
    return next((a.memory_free for a in facts.accelerators if a.pci == device), None)


@dataclass(frozen=True, slots=True)
class Claim:
    """Bytes that one engine of a model is expected to take, on each of some devices."""

    model: str
    devices: tuple[str, ...]
    size: int


class MakeRoom(Protocol):
    """What may be asked to give memory back before a plan is refused (eviction)."""

    async def __call__(self, plan: Plan, devices: tuple[str, ...], missing: int) -> bool:
        """Free `missing` bytes on each of the devices for the plan; whether something was given back.

        Called inside the devices' queues, so nobody takes meanwhile what it frees. It may take as long as a
        drain, may be cancelled at any await, and must not reserve anything itself. What it stops must be gone
        (`forget`) when it returns.
        """


class Admission:
    """The claims of one host. `limit` caps what all engines together may claim of system memory."""

    def __init__(self, facts: Callable[[], HostFacts], limit: int | None = None) -> None:
        self._facts = facts
        self._limit = limit
        self.floor: Callable[[], int] = lambda: host_reserve(self._facts())
        """Bytes of system memory that no engine may count on: `host_reserve`, or more."""
        self.yielding: Callable[[str], Collection[str]] = lambda _: ()
        """Asked with a model's name: the models that make way when it comes, so that its plan may count on their
        memory."""
        self._promised: dict[str, Claim] = {}
        self._taken: dict[str, Claim] = {}
        self._staying: set[str] = set()
        self.queues = DeviceQueues()
        self.make_room: MakeRoom | None = None
        """Asked once a reservation, when there is not room enough."""

    @property
    def facts(self) -> HostFacts:
        """The host as it was read last."""
        return self._facts()

    def free_for(self, plan: Plan) -> int | None:
        """The least that any of the plan's devices has left; None when unknown."""
        return self.free(devices_of(plan, self._facts()))

    def free(self, devices: Sequence[str]) -> int | None:
        """The least that any of the devices has left beside what is promised; None when unknown."""
        facts = self._facts()
        left = [self._free(device, facts) for device in devices]
        known = [size for size in left if size is not None]
        return min(known, default=None)

    def _free(self, device: str, facts: HostFacts) -> int | None:
        measured = free_bytes(device, facts, self.floor())
        promised = sum(c.size for c in self._promised.values() if device in c.devices)
        if measured is not None:
            measured -= promised
        if device == HOST and self._limit is not None:
            taken = sum(c.size for c in self._taken.values() if device in c.devices)
            below = self._limit - promised - taken
            measured = below if measured is None else min(measured, below)
        return None if measured is None else max(0, measured)

    async def reserve(self, engine: str, plan: Plan, waits: Callable[[str, str], None] | None = None) -> None:
        """Promise the plan's expected bytes to `engine`, or raise `DoesNotFit` with the numbers.

        Waits for its turn at each of the plan's devices (`waits` is told the device and who is before), and for
        room that can be made. Whoever is cancelled meanwhile leaves nothing behind.
        """
        devices = devices_of(plan, self._facts())
        size = plan.expected_memory.total
        async with self.queues.turn(devices, plan.model, waits):
            free = self.free(devices)
            if free is not None and size > free and await self._made_room(plan, devices, size - free):
                free = self.free(devices)
            if free is not None and size > free:
                raise _does_not_fit(plan, devices, free)
            self._promised[engine] = Claim(plan.model, devices, size)

    async def _made_room(self, plan: Plan, devices: tuple[str, ...], missing: int) -> bool:
        return self.make_room is not None and await self.make_room(plan, devices, missing)

    def promised(self) -> Mapping[str, Claim]:
        """The claims of engines that are not ready yet, by engine id."""
        return dict(self._promised)

    def claims(self) -> Mapping[str, Claim]:
        """Every claim there is, by engine id: promised, or taken."""
        return {**self._taken, **self._promised}

    def on_host(self, plan: Plan) -> bool:
        """Whether the plan takes memory of the system's own."""
        return HOST in devices_of(plan, self._facts())

    def settle(self, engine: str) -> None:
        """The engine is ready, and a reading of free memory since then shows what it took."""
        claim = self._promised.pop(engine, None)
        if claim is not None:
            self._taken[engine] = claim

    def adopt(self, engine: str, plan: Plan, *, loading: bool = False) -> None:
        """An engine that runs already has this plan; one that is still loading has yet to take its memory."""
        claims = self._promised if loading else self._taken
        claims[engine] = Claim(plan.model, devices_of(plan, self._facts()), plan.expected_memory.total)

    def stays(self, engine: str) -> None:
        """Nothing ends the engine: nobody may count on its memory, not even the next one of its model."""
        self._staying.add(engine)

    def forget(self, engine: str) -> None:
        """The engine is gone, or never came."""
        self._staying.discard(engine)
        self._promised.pop(engine, None)
        self._taken.pop(engine, None)

    def promised_bytes(self) -> int:
        """Bytes promised to engines that are not ready yet, over all devices."""
        return sum(c.size * len(c.devices) for c in self._promised.values())

    def facts_for(self, model: str) -> HostFacts:
        """The host's facts as a new plan of `model` may see them: what its own engines take counts as
        free, for the new plan replaces them, as does what makes way for it; the limit is kept."""
        facts = self._facts()
        going = {model, *self.yielding(model)}
        mine = {e for e, c in self._taken.items() if c.model in going and e not in self._staying}
        own = [c for e, c in self._taken.items() if e in mine]
        memory = facts.memory
        available = memory.available + sum(c.size for c in own if HOST in c.devices)
        if self._limit is not None:
            others = sum(c.size for e, c in self._taken.items() if HOST in c.devices and e not in mine)
            available = min(available, self._limit - others + host_reserve(facts))
        more = max(0, self.floor() - host_reserve(facts))  # kept beyond what the planner leaves alone by itself
        available -= more
        return dataclasses.replace(
            facts,
            memory=dataclasses.replace(memory, available=max(0, min(available, memory.total))),
            accelerators=tuple(
                dataclasses.replace(
                    a,
                    memory_free=None
                    if a.memory_free is None
                    else max(
                        0,
                        a.memory_free
                        + sum(c.size for c in own if a.pci in c.devices or (a.unified and HOST in c.devices))
                        - (more if a.unified else 0),
                    ),
                )
                for a in facts.accelerators
            ),
        )


def _does_not_fit(plan: Plan, devices: tuple[str, ...], free: int) -> DoesNotFit:
    size, each = plan.expected_memory.total, "" if len(devices) == 1 else " on each"
    error = DoesNotFit(
        f"{plan.model} needs {_gib(size)}{each} and {_gib(free)} are left on {', '.join(devices)}",
        hint="stop another model, or give this one less context"
        f" (`outrider plan {plan.model} --what-if context=4096` shows what that takes)",
        evidence={"needed_bytes": size, "free_bytes": free, "devices": list(devices)},
    )
    error.retryable = True  # what does not fit now may fit when something else has gone
    return error


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
