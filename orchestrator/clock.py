"""The one source of time. Deadlines and durations are monotonic; wall time is for people only."""

from __future__ import annotations

import datetime as dt
import time
from typing import Protocol


def since_boot() -> float:
    """Seconds since the host was started, those in which it slept included. For telling a sleep from time that ran."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Clock(Protocol):
    """Injected wherever time matters."""

    def now(self) -> float:
        """Monotonic seconds."""

    def wall(self) -> float:
        """Unix time in seconds, for display and journals; never for deadlines."""

    def today(self) -> dt.date:
        """The date (UTC), for what expires on a day."""


class SystemClock:
    """The machine's clocks."""

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()  # noqa: TID251 - the one place

    def today(self) -> dt.date:
        return dt.datetime.fromtimestamp(self.wall(), tz=dt.UTC).date()
