"""One queue a device: who promises its memory next.

First come, first served: what waits for room cannot be overtaken by something small that takes the
room it was made. Only promises queue. Loads go on side by side, and whatever gives memory back (a stop, a
start that is called off, the memory guard) passes all who wait: it never enters a queue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class _Ticket:
    who: str
    first: asyncio.Event = field(default_factory=asyncio.Event)


class DeviceQueues:
    """The queues of one host. A place that is given up (the task is cancelled) is gone at once."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[_Ticket]] = {}

    @asynccontextmanager
    async def turn(
        self, devices: Sequence[str], who: str, waits: Callable[[str, str], None] | None = None
    ) -> AsyncIterator[None]:
        """While inside, nobody else promises memory of these devices.

        They are entered in their order (PCI addresses, sorted), so that no two wait for each other. `waits`
        is told (device, who is before) each time that somebody is.
        """
        async with AsyncExitStack() as held:
            for device in sorted(set(devices)):
                await held.enter_async_context(self._one(device, who, waits))
            yield

    @asynccontextmanager
    async def _one(self, device: str, who: str, waits: Callable[[str, str], None] | None) -> AsyncIterator[None]:
        queue, ticket = self._queues.setdefault(device, deque()), _Ticket(who)
        queue.append(ticket)
        try:
            if queue[0] is not ticket:
                if waits is not None:
                    waits(device, queue[-2].who)
                await ticket.first.wait()
            yield
        finally:
            queue.remove(ticket)
            if queue:
                queue[0].first.set()
            elif self._queues.get(device) is queue:
                del self._queues[device]

    def line(self, device: str) -> tuple[str, ...]:
        """Who is in the queue of a device: the one whose turn it is first."""
        return tuple(ticket.who for ticket in self._queues.get(device, ()))

    def lines(self) -> dict[str, tuple[str, ...]]:
        """All queues that somebody is in, by device."""
        return {device: self.line(device) for device in sorted(self._queues)}
