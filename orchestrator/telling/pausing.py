"""`outrider pause` and `resume`: a person tells Outrider to keep its hands off one deployment, or off all.

It outlives the daemon. What a person asks for is done as ever, and looking goes on; whoever acts by itself asks
`Context.automation` first.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.automation import EVERYTHING
from orchestrator.context import Context
from orchestrator.errors import Refused
from orchestrator.registry import Registry
from orchestrator.views import PauseView


class Pausing:
    """The pauses of one host."""

    def __init__(self, context: Context, registry: Registry) -> None:
        self._c = context
        self._registry = registry

    async def list(self) -> Sequence[PauseView]:
        """What is paused, oldest first."""
        rows = await self._c.store.paused()
        return [PauseView(None if row.name == EVERYTHING else row.name, row.author, row.at) for row in rows]

    async def pause(self, name: str | None, author: str) -> None:
        """Keep hands off a deployment (by name or alias), or off everything. Raises NotFound. Saying it again
        changes nothing."""
        about = self._named(name)
        if any(row.name == about for row in await self._c.store.paused()):
            return
        await self._c.store.set_paused(about, author, self._c.clock.wall())
        self._c.automation.pause(about, author)
        what = "everything" if name is None else about
        self._say(
            "paused", f"{author} paused {what}: Outrider does nothing by itself until it is resumed", about, author
        )

    async def resume(self, name: str | None, author: str) -> None:
        """Act by itself again; for everything, single ones too. Raises NotFound, and Refused for a single one while
        everything is paused: it would stay so."""
        about = self._named(name)
        paused = {row.name for row in await self._c.store.paused()}
        if name is not None and EVERYTHING in paused:
            raise Refused(f"everything is paused, {about} with it", hint="`outrider resume` without a name resumes all")
        if not paused or (name is not None and about not in paused):
            return
        await self._c.store.clear_paused(None if name is None else about)
        self._c.automation.resume(about)
        what = "everything" if name is None else about
        self._say("resumed", f"{author} resumed {what}: Outrider acts by itself again", about, author)
        for actor in self._registry.all():
            if name is None or actor.deployment.name == about:
                actor.wake()

    def _named(self, name: str | None) -> str:
        return EVERYTHING if name is None else self._registry.known(name).deployment.name

    def _say(self, code: str, text: str, about: str, author: str) -> None:
        deployment = None if about == EVERYTHING else about
        self._c.journal.emit("desired", code, text, deployment=deployment, evidence={"by": author})
