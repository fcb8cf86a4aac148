"""Whose turn it is: when the daemon starts, models load one after the other, the most important first.

Side by side they would compete for the disk, and each would be planned for memory that another is
about to take. A model's turn is over when it serves, has failed, waits for a device or for a person,
or is no longer to run; nothing that cannot go on keeps the others waiting. What a person starts goes
at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """A model that is to be started, with its priority (higher is earlier)."""

    name: str
    priority: int


def in_order(claims: Sequence[Claim]) -> tuple[str, ...]:
    """Names by priority, highest first, then by name."""
    return tuple(c.name for c in sorted(claims, key=lambda c: (-c.priority, c.name)))


class Turns:
    """The queue of one start of the daemon. It only ever gets shorter."""

    def __init__(self) -> None:
        self._queue: tuple[str, ...] = ()
        self._wake: Mapping[str, Callable[[], None]] = {}

    def queue(self, names: Sequence[str], wake: Mapping[str, Callable[[], None]]) -> None:
        """Let these start in this order; `wake` is called when something before one of them has gone."""
        self._queue = tuple(names)
        self._wake = dict(wake)

    def before(self, name: str) -> str | None:
        """Who is to be through before this one may start; None when it may."""
        place = self._queue.index(name) if name in self._queue else 0
        return self._queue[place - 1] if place > 0 else None

    def leave(self, name: str) -> None:
        """This one's turn is over, or it needs none."""
        if name not in self._queue:
            return
        self._queue = tuple(other for other in self._queue if other != name)
        for other in self._queue:
            self._wake[other]()
