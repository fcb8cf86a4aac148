"""Containers that belong to no engine any more: each is taken down in the background, and until it is known to have
gone its memory is accounted for and its deployment is not started beside it.

A daemon that dies may leave a start on its way to Podman. The next daemon then sees a container that does not run,
and that begins to load once Podman gets to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from containers.errors import ContainerError
from containers.labels import Labels
from containers.podman import Podman
from containers.spec import ContainerState
from orchestrator.actor import Actor
from orchestrator.context import Context
from orchestrator.engine import Engine, remove_files
from orchestrator.errors import EngineFailed, OutriderError
from orchestrator.plan import Plan
from orchestrator.stopping import ladder

TRIES = 2
"""Removals in vain, though Podman answers, or waits in vain for its memory, after which a deployment is started beside
what is left, if there is memory for both: that one is wedged, and a wedged engine is in nobody's way."""
ENDED = frozenset({"exited", "stopped"})
"""States of a container whose process was there and has gone: it does not begin again by itself."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One container with its labels read; `plan` is None when the label is unreadable."""

    container: ContainerState
    labels: Labels | None
    plan: Plan | None

    @property
    def may_run(self) -> bool:
        """Whether its process is there, or may be at any moment."""
        return self.container.alive or self.container.state not in ENDED


@dataclass(slots=True)
class _Leftover:
    seen: Seen
    actor: Actor | None
    task: asyncio.Task[OutriderError | None]
    tries: int = 0
    held: bool = False
    """Its container is removed, and its memory or a process of it is still there."""
    told: str | None = None


class Leftovers(Collection[str]):
    """What is left of engines by container id, for one daemon."""

    def __init__(self, context: Context, podman: Podman) -> None:
        self._c = context
        self._podman = podman
        self._left: dict[str, _Leftover] = {}

    def __contains__(self, container: object) -> bool:
        return container in self._left

    def __iter__(self) -> Iterator[str]:
        return iter(self._left)

    def __len__(self) -> int:
        return len(self._left)

    def take_down(self, one: Seen, actor: Actor | None, *, proven: bool) -> None:
        """Remove a container, drained first if it serves. `proven`: it has taken all its memory. Asked again, it is
        tried again, unless it is being tried."""
        container = one.container.id
        left = self._left.get(container)
        if left is not None and not left.task.done():
            return
        engine = None if one.labels is None else one.labels.engine
        if engine is not None and one.plan is not None and one.may_run:
            self._c.admission.adopt(engine, one.plan, loading=not proven)
        task = asyncio.create_task(self._remove(one), name=f"remove-{one.container.name}")
        if left is None:
            self._left[container] = left = _Leftover(one, actor, task)
        left.seen, left.task = one, task
        if actor is not None and one.may_run and left.tries < TRIES:
            actor.wait_for(container)
        task.add_done_callback(lambda task: self._ended(container, task))

    def look(self, seen: Sequence[Seen], proven: Collection[str]) -> None:
        """Podman listed these. What is among them is removed again; what is not has gone, but for its files."""
        listed = {one.container.id: one for one in seen}
        for container, left in list(self._left.items()):
            if not left.task.done():
                continue
            one = listed.get(container)
            if one is None:
                if not left.held:
                    self._gone(left)
                one = replace(left.seen, container=replace(left.seen.container, alive=False, state="exited"))
            engine = None if one.labels is None else one.labels.engine
            self.take_down(one, left.actor, proven=engine in proven)

    async def close(self) -> None:
        """Leave what is being taken down to the next daemon."""
        tasks = [left.task for left in self._left.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _ended(self, container: str, task: asyncio.Task[OutriderError | None]) -> None:
        left = self._left.get(container)
        if task.cancelled() or left is None or left.task is not task:
            return
        error = task.exception() or task.result()
        if error is None:
            self._gone(self._left.pop(container))
            return
        left.tries += task.exception() is None  # Podman answered, and it is there all the same
        if left.tries >= TRIES:
            self._stays(left)
        if left.told != str(error):
            left.told = str(error)
            name, labels = left.seen.container.name, left.seen.labels
            deployment = None if labels is None else labels.deployment
            self._c.journal.emit("adoption", "not_removed", f"{name}: {error}", deployment=deployment)

    def _stays(self, left: _Leftover) -> None:
        if left.seen.labels is not None:
            self._c.admission.stays(left.seen.labels.engine)
        if left.actor is not None:
            left.actor.wait_no_longer(left.seen.container.id)

    def _gone(self, left: _Leftover) -> None:
        if left.seen.labels is not None:
            self._c.admission.forget(left.seen.labels.engine)
        if left.actor is not None:
            left.actor.wait_no_longer(left.seen.container.id)

    async def _remove(self, one: Seen) -> OutriderError | None:
        """None once it has gone; why it has not. Raises what kept that from being known."""
        container, labels = one.container.id, one.labels
        if one.container.alive and labels is not None:
            await self._c.gateway.drain(labels.engine, self._c.timing.drain, self._c.routing.revision)
        if one.container.alive:
            await ladder.end(self._podman, self._c.clock, container, self._c.timing.stop_grace)
        try:
            await self._podman.remove(container)
        except ContainerError as error:  # that no answer came does not mean that it was not done
            if await self._podman.inspect(container) is not None:
                return error
        if labels is not None and one.plan is not None:
            try:
                await self._c.runner.cleared(_engine(container, labels, one.plan))
            except EngineFailed as error:
                self._left[container].held = True
                return error
        await self._c.runner.read_host()
        if labels is not None:
            await asyncio.to_thread(remove_files, self._c.paths, labels.engine)
            await self._c.store.forget_engine(labels.engine)
        return None


def _engine(container: str, labels: Labels, plan: Plan) -> Engine:
    """As whose the barrier looks at what was removed."""
    return Engine(
        id=labels.engine,
        deployment=labels.deployment,
        generation=labels.generation,
        plan=plan,
        key="",
        socket=None,
        port=None,
        since=0.0,
        container_id=container,
    )
