"""What the API asks about stories: it gathers what a story is made of. The story itself is `story.tell`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from orchestrator.context import Context
from orchestrator.registry import Registry
from orchestrator.telling.pausing import Pausing
from orchestrator.telling.story import Entry, Story, tell
from orchestrator.views import PauseView

KEPT = 3000
"""Journal entries that a story is made of, at most."""


class Desk:
    """Tells of the deployments of one host."""

    def __init__(self, context: Context, registry: Registry) -> None:
        self._c = context
        self._registry = registry

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
    _pausing: Pausing

    async def why(self, name: str, *, since_s: float | None = None) -> Story:
        return await self._desk.why(name, since_s=since_s)

    async def pauses(self) -> Sequence[PauseView]:
        return await self._pausing.list()

    async def pause(self, name: str | None, *, author: str) -> Sequence[PauseView]:
        await self._pausing.pause(name, author)
        return await self._pausing.list()

    async def resume(self, name: str | None, *, author: str) -> Sequence[PauseView]:
        await self._pausing.resume(name, author)
        return await self._pausing.list()
