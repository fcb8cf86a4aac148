"""Request rates over a sliding window, from the gateway's cumulative counters. No clock of its own."""

from __future__ import annotations

from collections import deque


class Rate:
    """Arrivals a second over the last `window` seconds.

    Fed with increments; a window that has just begun is not stretched, so one early
    request is not mistaken for a storm.
    """

    def __init__(self, window: float) -> None:
        self._window = window
        self._samples: deque[tuple[float, int]] = deque()
        self._count = 0

    def add(self, count: int, now: float) -> None:
        """`count` arrivals since the last call, seen at `now` (monotonic seconds)."""
        if count > 0:
            self._samples.append((now, count))
            self._count += count
        self._forget(now)

    def value(self, now: float) -> float:
        """Arrivals a second over the window that ends at `now`."""
        self._forget(now)
        return self._count / self._window

    def _forget(self, now: float) -> None:
        while self._samples and self._samples[0][0] <= now - self._window:
            self._count -= self._samples.popleft()[1]
