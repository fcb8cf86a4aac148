"""Finding the engines that run under this daemon's label: at its start, and again and again.

What to do with each container, `adoption.decide` says. After a start, known engines are
compared with what Podman lists (events can be lost, a listing cannot), and containers that
belong to no engine are removed once they were seen twice.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from containers import labels as container_labels
from containers.labels import Labels
from containers.podman import Podman
from containers.spec import ContainerState
from containers.sweep import sweep
from orchestrator import adoption
from orchestrator.actor import Actor
from orchestrator.adoption import Adoption, Found
from orchestrator.decision import Decision
from orchestrator.engine import SOCKET_NAME, Engine, read_key, remove_files, socket_folder
from orchestrator.engine_client import EngineUnreachable
from orchestrator.plan import Plan
from orchestrator.runtimes import adapter
from orchestrator.steps import Context
from orchestrator.views import State

HEALTH_LIMIT = 2.0
"""Seconds that an adopted engine may take to say it is healthy before it has to prove itself again."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One container with its labels read; `plan` is None when the label is unreadable."""

    container: ContainerState
    labels: Labels | None
    plan: Plan | None


class Adopter:
    """Adopts and relists for one daemon."""

    def __init__(self, context: Context, podman: Podman) -> None:
        self._c = context
        self._podman = podman
        self._owner = context.paths.owner
        self._suspects: set[str] = set()

    async def adopt(self, define: Callable[[str], Actor | None], actors: Mapping[str, Actor]) -> None:
        """Give every engine that runs to its actor and remove what cannot be kept. Once, before the actors run."""
        seen = await self._list()
        proven = await self._c.store.proven()
        newest = _newest_running(seen)
        kept: set[str] = set()
        checks: list[asyncio.Task[None]] = []
        removals: list[asyncio.Task[None]] = []
        for one in seen:
            actor = None if one.labels is None else define(one.labels.deployment)
            decision = self._decide(one, actor, proven, newest)
            self._tell(one, decision)
            if decision.action is Adoption.REMOVE or one.labels is None or one.plan is None or actor is None:
                removals.append(asyncio.create_task(self._remove(one)))
                continue
            engine = self._engine(one, one.labels, one.plan, ready=decision.action is Adoption.ADOPT)
            kept.add(engine.id)
            checks.append(asyncio.create_task(self._check_then_adopt(actor, engine)))
        for tasks in (checks, removals):
            if tasks:
                await asyncio.wait(tasks)
                for task in tasks:
                    task.result()
        await asyncio.to_thread(self._tidy, kept | {e.id for a in actors.values() for e in a.deployment.engines})

    async def relist(self, actors: Sequence[Actor]) -> None:
        """Compare what Podman lists with what is known."""
        seen = await self._list()
        by_engine = {one.labels.engine: one.container for one in seen if one.labels is not None}
        known: set[str] = set()
        for actor in actors:
            for engine in actor.deployment.live():
                known.add(engine.id)
                container = by_engine.get(engine.id)
                gone = container is None or not container.alive
                if gone and engine.state in (State.READY, State.DRAINING) and not engine.exited.is_set():
                    engine.exited.set()
                    actor.wake()
        strangers = {one.container.id for one in seen if one.labels is None or one.labels.engine not in known}
        for one in seen:
            if one.container.id in strangers & self._suspects:
                self._tell(one, Decision(Adoption.REMOVE, "belongs_to_no_engine", {"state": one.container.state}))
                await self._remove(one)
        self._suspects = strangers

    async def sweep(self, actors: Sequence[Actor]) -> object:
        """Remove what killed Podman services left behind, passing over what is being created now."""
        busy = [
            self._c.runner.container_name(engine)
            for actor in actors
            for engine in actor.deployment.live()
            if engine.state in (State.PULLING, State.CREATING)
        ]
        kept = [e.container_id for a in actors for e in a.deployment.live() if e.container_id is not None]
        label = (container_labels.OWNER, self._owner)
        return await sweep(self._podman, label, f"outrider-{self._owner[:8]}-", busy=[*busy, *kept])

    async def _list(self) -> Sequence[Seen]:
        containers = await self._podman.containers(container_labels.owned_by(self._owner))
        return [Seen(c, *_read(c)) for c in containers]

    def _decide(
        self, one: Seen, actor: Actor | None, proven: frozenset[str], newest: Mapping[str, int]
    ) -> Decision[Adoption]:
        labels, plan = one.labels, one.plan
        readable = labels is not None and plan is not None
        return adoption.decide(
            Found(
                state=one.container.state,
                alive=one.container.alive,
                conmon_alive=one.container.conmon_alive,
                plan_readable=readable,
                key_present=labels is not None and read_key(self._c.paths, labels.engine) is not None,
                wanted=actor is not None and actor.deployment.should_run,
                proven=labels is not None and labels.engine in proven,
                superseded=labels is not None and newest.get(labels.deployment, 0) > labels.generation,
            )
        )

    def _tell(self, one: Seen, decision: Decision[Adoption]) -> None:
        name = one.container.name
        self._c.journal.emit(
            "adoption",
            decision.action.value,
            f"{name}: {decision.action} ({decision.reason})",
            deployment=None if one.labels is None else one.labels.deployment,
            evidence={"container": one.container.id, "reason": decision.reason, **decision.evidence},
        )

    def _engine(self, one: Seen, labels: Labels, plan: Plan, *, ready: bool) -> Engine:
        return Engine(
            id=labels.engine,
            deployment=labels.deployment,
            generation=labels.generation,
            plan=plan,
            key=read_key(self._c.paths, labels.engine) or "",
            socket=str(socket_folder(self._c.paths, labels.engine) / SOCKET_NAME) if plan.socket else None,
            port=_port(one.container),
            since=one.container.started_at or self._c.clock.wall(),
            state=State.READY if ready else State.LOADING,
            container_id=one.container.id,
            pid=one.container.pid,
            ready_at=self._c.clock.now() if ready else None,
        )

    async def _check_then_adopt(self, actor: Actor, engine: Engine) -> None:
        """A proven engine serves on if it says it is healthy; else it has to prove itself again."""
        if engine.pid is not None:
            engine.follow(engine.pid)
        if engine.port is not None:
            self._c.runner.ports.keep(engine.port)
        if engine.state is State.READY:
            path = adapter(engine.plan.runtime).health_path
            try:
                async with self._c.runner.client(engine) as client:
                    healthy = (await client.get(path, timeout=HEALTH_LIMIT)).status == 200
            except EngineUnreachable:
                healthy = False
            if not healthy:
                engine.state, engine.ready_at = State.LOADING, None
        self._c.admission.adopt(engine.id, engine.plan)
        actor.adopt(engine)

    async def _remove(self, one: Seen) -> None:
        if one.container.alive:
            await self._podman.stop(one.container.id, self._c.timing.stop_grace)
        await self._podman.remove(one.container.id)
        if one.labels is not None:
            await asyncio.to_thread(remove_files, self._c.paths, one.labels.engine)
            await self._c.store.forget_engine(one.labels.engine)

    def _tidy(self, kept: set[str]) -> None:
        """Socket folders and keys of engines that no longer exist."""
        for entry in self._c.paths.engines.iterdir():
            engine = entry.name.removesuffix(".key")
            if engine not in kept:
                remove_files(self._c.paths, engine)


def _read(container: ContainerState) -> tuple[Labels | None, Plan | None]:
    labels = container_labels.read(container.labels)
    if labels is None:
        return None, None
    try:
        plan = Plan.from_dict(json.loads(labels.plan_json))
    except (ValueError, TypeError, AttributeError):
        return labels, None
    return labels, plan if plan.digest == labels.plan else None


def _port(container: ContainerState) -> int | None:
    text = container.labels.get(container_labels.PORT, "")
    return int(text) if text.isascii() and text.isdigit() else None


def _newest_running(seen: Sequence[Seen]) -> dict[str, int]:
    newest: dict[str, int] = {}
    for one in seen:
        if one.labels is not None and one.container.alive:
            newest[one.labels.deployment] = max(newest.get(one.labels.deployment, 0), one.labels.generation)
    return newest
