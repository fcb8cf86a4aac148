"""The loops that watch engines: whether they are well, draft as planned, say what their weights say, can be reached."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hosts.roots import Roots
from orchestrator.actor import Actor
from orchestrator.canary.watching import CanaryWatch
from orchestrator.context import Context
from orchestrator.health.watching import HealthWatch
from orchestrator.stopping.path_watch import PathWatch
from orchestrator.supervise import Loops


class EngineWatches:
    """The watches of one host."""

    def __init__(self, context: Context, roots: Roots) -> None:
        self._timing = context.timing
        self._paths = PathWatch(context)
        self._canaries = CanaryWatch(context)
        self.health = HealthWatch(context, roots, broken=self._paths.broken)

    def start(self, loops: Loops, actors: Callable[[], Sequence[Actor]]) -> None:
        """Begin the loops."""
        loops.every("health", self._timing.health_period, lambda: self.health.look(actors()))
        loops.every("paths", self._timing.path_period, lambda: self._paths.look(actors()))
        loops.forever("canaries", lambda: self._canaries.watch(actors))

    async def close(self) -> None:
        """Take back what engines were asked; the loops are ended by whoever has them."""
        await self.health.close()
