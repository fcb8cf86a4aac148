"""The last samples, so many and no more."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    """One sample. `at` are monotonic seconds, `wall` Unix seconds.

    `sequence` grows with each sample and, as it follows the monotonic clock (milliseconds), also from
    one daemon to the next until the machine boots anew.
    """

    sequence: int
    at: float
    wall: float
    value: T


class Ring(Generic[T]):
    """Keeps the newest `size` samples."""

    def __init__(self, size: int) -> None:
        self._entries: deque[Entry[T]] = deque(maxlen=size)

    def add(self, value: T, *, at: float, wall: float) -> Entry[T]:
        """Take one in; the oldest goes when there are too many."""
        last = self._entries[-1].sequence if self._entries else 0
        entry = Entry(max(last + 1, int(at * 1000)), at, wall, value)
        self._entries.append(entry)
        return entry

    def since(self, sequence: int = 0, limit: int | None = None) -> list[Entry[T]]:
        """Those after `sequence`, oldest first; of more than `limit` the newest.

        A sequence that is still to come is one of another boot: all count as newer.
        """
        newest = self.newest
        if newest is not None and sequence > newest.sequence:
            sequence = 0
        found = [entry for entry in self._entries if entry.sequence > sequence]
        return found if limit is None else found[max(len(found) - limit, 0) :]

    @property
    def newest(self) -> Entry[T] | None:
        """The last one, or None before the first."""
        return self._entries[-1] if self._entries else None

    def __len__(self) -> int:
        return len(self._entries)
