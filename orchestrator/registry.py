"""The deployments of this daemon: one actor each, found by name or alias, kept running."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import structlog

from orchestrator.actor import Actor
from orchestrator.context import Context
from orchestrator.deployment import Deployment
from orchestrator.errors import DiskError, NotFound
from orchestrator.models import ModelEntry
from orchestrator.planning import Planning
from orchestrator.turns import Claim, Turns, in_order
from orchestrator.views import Desired

CRASH_PAUSE = 1.0
log = structlog.get_logger("registry")


class Registry:
    """Actors by public name. Nothing runs before `start`: first what runs already has to be adopted."""

    def __init__(self, context: Context, planning: Planning, host: str) -> None:
        self._context = context
        self._planning = planning
        self._host = host
        self._actors: dict[str, Actor] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._started = False

    def define(self, entry: ModelEntry) -> Actor:
        """A new deployment for a model."""
        suspicion = self._context.marks.suspicion(entry.name)
        actor = Actor(Deployment(entry, self._host, suspicion=suspicion), self._context)
        self._actors[entry.name] = actor
        if self._started:
            self._run(actor)
        return actor

    def start(self) -> None:
        """Adoption is done: let every actor act."""
        self._started = True
        for actor in self._actors.values():
            actor.begin()
        self._take_turns()
        for actor in self._actors.values():
            actor.publish()
            self._run(actor)

    def _take_turns(self) -> None:
        """What is to run and does not yet is started one after the other, and after what a former daemon has
        left loading: that has begun, and goes on."""
        begun = [a for a in self._actors.values() if _loads(a.deployment)]
        waiting = [a for a in self._actors.values() if _may_start(a.deployment)]
        claims = [Claim(a.deployment.name, a.deployment.entry.priority) for a in waiting]
        names = (*(a.deployment.name for a in begun), *in_order(claims))
        self._context.turns.queue(names, {a.deployment.name: a.wake for a in (*begun, *waiting)})
        for actor in (*begun, *waiting):
            actor.take_turn()
        if len(names) > 1:
            self._context.journal.emit(
                "lifecycle", "starting_in_turn", f"one after the other: {', '.join(names)}", evidence={"order": names}
            )

    def _run(self, actor: Actor) -> None:
        name = actor.deployment.name
        self._tasks[name] = asyncio.create_task(_forever(actor, self._context.turns), name=f"actor-{name}")

    def all(self) -> Sequence[Actor]:
        """Every actor, by name."""
        return [self._actors[name] for name in sorted(self._actors)]

    def names(self) -> Sequence[str]:
        return sorted(self._actors)

    def find(self, name: str) -> Actor | None:
        """The actor of a public name or alias; a catalogue model gets one when it is first asked for."""
        actor = self._actors.get(name)
        if actor is not None:
            return actor
        entry = self._planning.entry(name)
        if entry is None:
            return None
        return self._actors.get(entry.name) or self.define(entry)

    def own(self, name: str) -> Actor | None:
        """The actor of exactly this public name: what labels and the database speak of."""
        actor = self.find(name)
        return actor if actor is not None and actor.deployment.name == name else None

    def get(self, name: str) -> Actor:
        """`find` among the deployments there are, or NotFound."""
        actor = self._actors.get(name) or self._actors.get(self._planning.find(name).name)
        if actor is None:
            raise NotFound(f"{name} was never started", hint=f"`outrider start {name}` starts it")
        return actor

    def known(self, name: str) -> Actor:
        """`find`, or NotFound."""
        return self.find(name) or self.get(name)

    async def undefine(self, name: str, limit: float) -> None:
        """A model is no longer defined: its engine stops, and nothing is desired of it."""
        actor = self._actors[name]
        await actor.set_desired(Desired.STOPPED, "configuration")
        await self.settled([actor], limit)
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()
            await asyncio.wait([task], timeout=limit)
        del self._actors[name]
        self._context.routing.publish(name, None)
        self._context.gateway.forget(name)
        await self._context.store.forget(name)
        with suppress(DiskError):  # it says nothing about a model that is no longer there
            await self._context.marks.forget(name, f"{name} is no longer defined")

    async def settled(self, actors: Sequence[Actor], limit: float) -> None:
        """Wait until these have no engine left, at most `limit` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                for actor in actors:
                    await actor.settled()

    async def close(self, limit: float) -> None:
        """End the actors, not their engines."""
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()), timeout=limit)


def _may_start(d: Deployment) -> bool:
    return d.should_run and not d.live() and d.suspicion is None and not d.failures.parked


def _loads(d: Deployment) -> bool:
    return d.should_run and d.loading and d.serving_engine is None


async def _forever(actor: Actor, turns: Turns) -> None:
    """Run an actor; one that crashes would leave everybody who asks it waiting for ever."""
    while True:
        try:
            await actor.run()
        except Exception:  # a defect: logged whole, and the deployment goes on from the state it is in
            log.exception("actor_crashed", deployment=actor.deployment.name)
            turns.leave(actor.deployment.name)
        await asyncio.sleep(CRASH_PAUSE)
