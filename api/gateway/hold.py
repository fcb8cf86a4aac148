"""The bounded queue of requests that wait for an engine, one per model, first come first served.

The queue keeps order, bound and time; what a turn means is the waiter's business.
"""

from __future__ import annotations

import asyncio
from typing import Protocol


class Waiter(Protocol):
    """A request that waits."""

    def recheck(self) -> None:
        """Routing changed: go on, or stay (the queue is left with `WaitingRoom.leave`)."""

    def expired(self) -> None:
        """The time is up; the place is already given back."""

    def still_waiting(self) -> None:
        """Called every `comment_every` seconds while waiting."""

    def closing(self) -> None:
        """The gateway stops; the place is already given back."""


class _Place:
    """One waiter's timers."""

    __slots__ = ("comment", "deadline")

    def __init__(self, deadline: asyncio.TimerHandle) -> None:
        self.deadline = deadline
        self.comment: asyncio.TimerHandle | None = None

    def cancel(self) -> None:
        self.deadline.cancel()
        if self.comment is not None:
            self.comment.cancel()


class WaitingRoom:
    """Up to `limit` waiters in the order of their coming."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._places: dict[Waiter, _Place] = {}

    def __len__(self) -> int:
        return len(self._places)

    @property
    def limit(self) -> int:
        return self._limit

    def enter(self, waiter: Waiter, limit_s: float, comment_every: float | None) -> bool:
        """Take a place for at most `limit_s` seconds; False when there is none."""
        if len(self._places) >= self._limit:
            return False
        loop = asyncio.get_running_loop()
        place = _Place(loop.call_later(limit_s, self._expire, waiter))
        if comment_every is not None:
            place.comment = loop.call_later(comment_every, self._remind, waiter, comment_every)
        self._places[waiter] = place
        return True

    def leave(self, waiter: Waiter) -> None:
        """Give the place back; nothing happens when there is none."""
        place = self._places.pop(waiter, None)
        if place is not None:
            place.cancel()

    def recheck(self) -> None:
        """Let every waiter look at the routing again, in order."""
        for waiter in list(self._places):
            if waiter in self._places:
                waiter.recheck()

    def close(self) -> None:
        """Turn everybody away."""
        for waiter in list(self._places):
            self.leave(waiter)
            waiter.closing()

    def _expire(self, waiter: Waiter) -> None:
        self.leave(waiter)
        waiter.expired()

    def _remind(self, waiter: Waiter, every: float) -> None:
        place = self._places[waiter]
        place.comment = asyncio.get_running_loop().call_later(every, self._remind, waiter, every)
        waiter.still_waiting()
