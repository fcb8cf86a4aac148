"""Memory for engines: what is free, what is promised, and one queue a device.

An engine that still loads has not taken its memory yet, so what is free now is not free
for the next one: each start reserves its expected bytes until it is ready. The queue
serialises reservations, not loads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hosts.facts import HostFacts
from orchestrator.errors import DoesNotFit
from orchestrator.plan import Plan

HOST = "host"
"""The device key of system memory: engines on the CPU and on unified memory."""
HOST_RESERVE = 512 << 20
"""Bytes of system memory never promised to an engine: the daemon, the gateway and the page cache of weights."""


def devices_of(plan: Plan, facts: HostFacts) -> tuple[str, ...]:
    """Keys of the devices whose memory the plan takes, in PCI order: PCI addresses, or `host`.

    A plan that names device nodes takes the accelerators that list them; unified memory is
    the host's own.
    """
    if not plan.devices:
        return (HOST,)
    taken = sorted(a.pci for a in facts.accelerators if not a.unified and set(a.devices) & set(plan.devices))
    return tuple(taken) or (HOST,)


def free_bytes(device: str, facts: HostFacts) -> int | None:
    """What the device has left by the host's last reading; None when unknown."""
    if device == HOST:
        return max(0, facts.memory.available - HOST_RESERVE)
    return next((a.memory_free for a in facts.accelerators if a.pci == device), None)


@dataclass(frozen=True, slots=True)
class Reservation:
    """Bytes promised to one engine on some devices."""

    engine: str
    devices: tuple[str, ...]
    size: int


class Admission:
    """The reservations of one host."""

    def __init__(self, facts: Callable[[], HostFacts]) -> None:
        self._facts = facts
        self._reserved: dict[str, Reservation] = {}
        self._queues: dict[str, asyncio.Lock] = {}

    def free(self, devices: Sequence[str], *, without: str | None = None) -> int | None:
        """The least that any of the devices has left beside what is promised (except to engine `without`)."""
        facts = self._facts()
        least: int | None = None
        for device in devices:
            measured = free_bytes(device, facts)
            if measured is None:
                continue
            promised = sum(r.size for e, r in self._reserved.items() if device in r.devices and e != without)
            left = max(0, measured - promised)
            least = left if least is None else min(least, left)
        return least

    async def reserve(self, engine: str, plan: Plan) -> Reservation:
        """Promise the plan's expected bytes to `engine`, or raise `DoesNotFit` with the numbers."""
        devices = devices_of(plan, self._facts())
        size = plan.expected_memory.total
        locks = [self._queues.setdefault(d, asyncio.Lock()) for d in devices]
        for lock in locks:
            await lock.acquire()
        try:
            free = self.free(devices)
            if free is not None and size > free:
                error = DoesNotFit(
                    f"{plan.model} needs {_gib(size)} and {_gib(free)} are left on {', '.join(devices)}",
                    hint="stop another model, or plan less context (`outrider plan MODEL --what-if ctx=4096`)",
                    evidence={"needed_bytes": size, "free_bytes": free, "devices": list(devices)},
                )
                error.retryable = True  # what does not fit now may fit when something else has gone
                raise error
            reservation = Reservation(engine, devices, size)
            self._reserved[engine] = reservation
            return reservation
        finally:
            for lock in reversed(locks):
                lock.release()

    def release(self, engine: str) -> None:
        """The engine has taken its memory (or gave up): measured readings speak for it from now on."""
        self._reserved.pop(engine, None)

    def reserved(self) -> Sequence[Reservation]:
        return list(self._reserved.values())


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
