"""Everything of housekeeping that a daemon has, in one object."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import structlog

from containers import service
from containers.podman import Podman
from orchestrator import log_file
from orchestrator.config import Config
from orchestrator.context import Context
from orchestrator.housekeeping.watch import LowWater
from orchestrator.jobs import Jobs

log = structlog.get_logger("housekeeping")


class Housekeeping:
    """`config` is asked for anew each time: a reload may have changed it."""

    def __init__(self, context: Context, podman: Podman, jobs: Jobs, config: Callable[[], Config]) -> None:
        self._c = context
        self._config = config
        self._water = LowWater(
            context,
            podman,
            jobs,
            low_water=lambda: config().store.low_water,
            reclaimable=self.reclaimable,
        )

    async def look(self) -> None:
        """Cap the log of a Podman service of our own, look at the disks: the loop's work."""
        try:
            await asyncio.to_thread(log_file.cut, self._podman_log, self._config().logs.daemon_bytes)
        except OSError as error:
            log.warning("log_not_cut", path=str(self._podman_log), error=error.strerror)
        await self._water.look()

    @property
    def _podman_log(self) -> Path:
        return self._c.paths.run_dir / service.LOG_FILE

    async def reclaimable(self) -> int | None:
        """Bytes that `outrider prune` would free; None when that cannot be known now."""
        return None
