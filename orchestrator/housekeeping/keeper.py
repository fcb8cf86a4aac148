"""Everything of housekeeping that a daemon has, in one object."""

from __future__ import annotations

from collections.abc import Callable

from containers.podman import Podman
from orchestrator.config import Config
from orchestrator.context import Context
from orchestrator.housekeeping.watch import LowWater
from orchestrator.jobs import Jobs


class Housekeeping:
    """`config` is asked for anew each time: a reload may have changed it."""

    def __init__(self, context: Context, podman: Podman, jobs: Jobs, config: Callable[[], Config]) -> None:
        self._water = LowWater(
            context,
            podman,
            jobs,
            low_water=lambda: config().store.low_water,
            reclaimable=self.reclaimable,
        )

    async def look(self) -> None:
        """Look at the disks: the loop's work."""
        await self._water.look()

    async def reclaimable(self) -> int | None:
        """Bytes that `outrider prune` would free; None when that cannot be known now."""
        return None
