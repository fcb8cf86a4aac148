"""What the API asks about stories: it gathers what a story is made of. The story itself is `story.tell`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from orchestrator.context import Context
from orchestrator.health.pace import Pace
from orchestrator.issue_rules._sight import Sight
from orchestrator.registry import Registry
from orchestrator.supervise import Loops
from orchestrator.telling.pausing import Pausing
from orchestrator.telling.story import Entry, Story, tell
from orchestrator.views import Health, PauseView

STUCK = 60.0
"""Seconds beyond its period without a sign of life, after which a loop is an issue."""
KEPT = 3000
"""Journal entries that a story is made of, at most."""


class Desk:
    """Tells of the deployments of one host."""

    def __init__(
        self,
        context: Context,
        registry: Registry,
        *,
        health: Callable[[], Awaitable[Health]],
        loops: Loops,
        paces: Callable[[], Mapping[str, Pace]],
    ) -> None:
        self._c = context
        self._registry = registry
        self._health = health
        self._loops = loops
        self._paces = paces
        self.pausing = Pausing(context, registry)

    async def sight(self) -> Sight:
        """What the issue rules look at."""
        if self._c.journal.unwritten:
            await self._c.journal.flush()
        actors = self._registry.all()
        failures = {actor.deployment.name: actor.deployment.failures for actor in actors}
        return Sight(
            at=self._c.clock.wall(),
            health=await self._health(),
            deployments=tuple(actor.view() for actor in actors),
            failures={name: one.count for name, one in failures.items()},
            parked=frozenset(name for name, one in failures.items() if one.parked),
            open=frozenset((issue.code, issue.subject) for issue in self._c.issues.list()),
            pauses=tuple(await self.pausing.list()),
            gateway_quiet_s=self._c.gateway.quiet_s,
            paces=self._paces(),
            unwritten=self._c.journal.unwritten,
            stuck=tuple(self._loops.stuck(STUCK * max(1.0, self._c.timing.scale))),
        )

    async def why(self, name: str, *, since_s: float | None = None) -> Story:
        """The story of a deployment, by name or alias; of the last `since_s` seconds, else since a person last said
        what they want. Raises NotFound."""
        view = self._registry.get(name).view()
        found = await self._c.journal.recall(view.deployment, KEPT)
        entries = [Entry(event, ago) for event, ago in found]
        issues = self._c.issues.list()
        # a story of thousands of entries is work for a thread: nothing here is shared
        return await asyncio.to_thread(tell, view, entries, issues, since_s=since_s)


class Told:
    """The verbs of `orchestrator.facade` that tell; a part of `orchestrator.service.Outrider`."""

    _desk: Desk

    async def why(self, name: str, *, since_s: float | None = None) -> Story:
        return await self._desk.why(name, since_s=since_s)

    async def pauses(self) -> Sequence[PauseView]:
        return await self._desk.pausing.list()

    async def pause(self, name: str | None, *, author: str) -> Sequence[PauseView]:
        await self._desk.pausing.pause(name, author)
        return await self._desk.pausing.list()

    async def resume(self, name: str | None, *, author: str) -> Sequence[PauseView]:
        await self._desk.pausing.resume(name, author)
        return await self._desk.pausing.list()
