"""Observed against known: what runs is adopted, what vanished is noticed, and what would be planned now is compared."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog

from containers.errors import ContainerError, PodmanTimeout
from orchestrator.adopting import Adopter
from orchestrator.context import Context
from orchestrator.errors import OutriderError
from orchestrator.planning import Planning
from orchestrator.registry import Registry
from orchestrator.supervise import Loops

log = structlog.get_logger("daemon")


class Reconciliation:
    """The rounds of one daemon. The first in which Podman answers adopts."""

    def __init__(
        self,
        context: Context,
        registry: Registry,
        *,
        adopter: Adopter,
        planning: Planning,
        loops: Loops,
        revive: Callable[[], Awaitable[None]] | None,
    ) -> None:
        """`loops` is told how far a round is; `revive` starts a Podman service of our own again."""
        self._c = context
        self._registry = registry
        self._adopter = adopter
        self._planning = planning
        self._loops = loops
        self._revive = revive
        self.adopted = asyncio.Event()
        """Set once what runs is known."""
        self.podman_ok: bool | None = None
        """Whether Podman answered in the last round; None before the first."""

    async def look(self) -> None:
        """Observed against known: adopt first, then notice what vanished or belongs to nobody."""
        try:
            if self.adopted.is_set():
                await self._relist()
            else:
                await self._adopt()
        except ContainerError as error:
            if self.podman_ok is not False:
                text = f"Podman does not answer; engines go on meanwhile ({error.detail})"
                self._c.journal.emit("podman", error.code, text, evidence={"hint": error.hint})
            self.podman_ok = False
            self._loops.beat("reconcile")
            if self._revive is not None:
                await self._revive()
            return
        if self.podman_ok is False:
            self._c.journal.emit("podman", "podman_back", "Podman answers again")
        self.podman_ok = True
        self._loops.beat("reconcile")
        await self._see_drift()

    async def _relist(self) -> None:
        """A round of several calls has the deadline of one: a Podman that hangs in the middle of it must not keep
        the round from showing life for longer than the service manager waits."""
        limit = self._c.timing.podman_call
        try:
            async with asyncio.timeout(limit):
                await self._adopter.relist(self._registry.all())
        except TimeoutError as error:
            raise PodmanTimeout(
                f"compare with what Podman lists: not done within {limit:g} s",
                hint="`podman ps` shows whether Podman answers at all",
                evidence={"limit_s": limit},
            ) from error

    async def _adopt(self) -> None:
        await self._adopter.adopt(self._registry.own, {a.deployment.name: a for a in self._registry.all()})
        self._loops.beat("reconcile")
        try:
            await self.sweep()
        except ContainerError as error:  # what is left behind can be swept later
            log.warning("not_swept", code=error.code, error=error.detail)
        await self._c.marks.settle({a.deployment.name for a in self._registry.all() if a.deployment.loading})
        self.adopted.set()
        self._registry.start()
        self._c.routing.open()

    async def sweep(self) -> object:
        return await self._adopter.sweep(self._registry.all())

    async def _see_drift(self) -> None:
        """What the planner would choose now, for `drifted`. It never restarts anything."""
        for actor in self._registry.all():
            d = actor.deployment
            if d.serving_engine is not None and d.fresh is None:
                self._loops.beat("reconcile")
                with suppress(OutriderError):
                    plan = await self._planning.plan(d.entry, speculate=d.speculate, choose=actor.rung)
                    d.fresh = plan.digest
