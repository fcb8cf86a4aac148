"""The one source of time. Deadlines and durations are monotonic; wall time is for people only."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Injected wherever time matters."""

    def now(self) -> float:
        """Monotonic seconds."""

    def wall(self) -> float:
        """Unix time in seconds, for display and journals; never for deadlines."""


class SystemClock:
    """The machine's clocks."""

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()  # noqa: TID251 - the one place
