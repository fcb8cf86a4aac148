"""Work that may happen at any time of day: APScheduler runs it, in memory, off the critical path.

Nothing whose timing matters is here: APScheduler 3's intervals hang on the wall clock.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Awaitable, Callable, Mapping

import structlog
from apscheduler.schedulers.asyncio import AsyncIOScheduler

from orchestrator.clock import SystemClock
from orchestrator.errors import OutriderError

HOURS = 6
log = structlog.get_logger("chores")


class Chores:
    """Named chores, each every few hours."""

    def __init__(
        self, chores: Mapping[str, Callable[[], Awaitable[object]]], *, soon: Mapping[str, float] | None = None
    ) -> None:
        """`soon` are those that also run once, so many seconds after the start."""
        self._chores = chores
        self._soon = soon or {}
        self._scheduler = AsyncIOScheduler(timezone="UTC")
        for name, work in chores.items():
            self._scheduler.add_job(
                _logged,
                "interval",
                args=(name, work),
                hours=HOURS,
                id=name,
                coalesce=True,
                misfire_grace_time=3600,
                max_instances=1,
            )

    def start(self) -> None:
        self._scheduler.start()
        for name, seconds in self._soon.items():
            at = dt.datetime.fromtimestamp(SystemClock().wall() + seconds, tz=dt.UTC)
            self._scheduler.add_job(
                _logged, "date", args=(name, self._chores[name]), run_date=at, misfire_grace_time=3600
            )

    async def close(self) -> None:
        if self._scheduler.running:  # a daemon may end before it began
            self._scheduler.shutdown(wait=False)


async def _logged(name: str, work: Callable[[], Awaitable[object]]) -> None:
    try:
        result = await work()
    except OutriderError as error:
        log.warning("chore_failed", chore=name, code=error.code, error=error.detail)
    else:
        log.info("chore_done", chore=name, result=repr(result))
