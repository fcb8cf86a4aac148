"""Everything of housekeeping that a daemon has, in one object."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import structlog

from containers import service
from containers.podman import Podman
from orchestrator import config as configuration
from orchestrator import log_file
from orchestrator.config import Config
from orchestrator.context import Context
from orchestrator.deployment import Deployment
from orchestrator.errors import ConfigError
from orchestrator.housekeeping import claims
from orchestrator.housekeeping.claims import Claims
from orchestrator.housekeeping.pruning import Pruning
from orchestrator.housekeeping.unused import Wish
from orchestrator.housekeeping.watch import LowWater
from orchestrator.jobs import Jobs
from orchestrator.views import PruneResult

log = structlog.get_logger("housekeeping")


class Housekeeping:
    """`config` and `deployments` are asked for anew each time: a reload may have changed them."""

    def __init__(
        self,
        context: Context,
        podman: Podman,
        jobs: Jobs,
        *,
        config: Callable[[], Config],
        deployments: Callable[[], Sequence[Deployment]],
    ) -> None:
        self._c = context
        self._jobs = jobs
        self._config = config
        self._deployments = deployments
        self._pruning = Pruning(context, podman, self._claims)
        self._water = LowWater(
            context,
            podman,
            jobs,
            low_water=lambda: config().store.low_water,
            reclaimable=self._pruning.reclaimable,
        )

    async def look(self) -> None:
        """Cap the log of a Podman service of our own, look at the disks: the loop's work."""
        try:
            await asyncio.to_thread(log_file.cut, self._podman_log, self._config().logs.daemon_bytes)
        except OSError as error:
            log.warning("log_not_cut", path=str(self._podman_log), error=error.strerror)
        await self._water.look()

    async def prune(self, wish: Wish, *, dry_run: bool, only: Collection[str] | None = None) -> PruneResult:
        """See `Pruning.prune`."""
        return await self._pruning.prune(wish, dry_run=dry_run, only=only)

    @property
    def _podman_log(self) -> Path:
        return self._c.paths.run_dir / service.LOG_FILE

    async def _claims(self) -> Claims:
        """What needs what now. Files that cannot be read may claim anything, so then nothing of weights goes."""
        shipped = self._c.planning.shipped
        catalogues = [self._c.planning.catalogue]
        unread: tuple[str, ...] = ()
        try:
            written = await asyncio.to_thread(configuration.load, self._c.paths)
        except ConfigError as error:
            unread = (f"perhaps a file that cannot be read: {error.detail}",)
        else:
            catalogues.append(written.laid_over(shipped))
        pins = await self._c.store.pins()
        return claims.gather(
            self._deployments(),
            catalogues,
            self._jobs.list(),
            str(self._c.paths.store),
            pins=[claims.pinned(pin.reference, pin.digest) for pin in pins],
            unread=unread,
        )
