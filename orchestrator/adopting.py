"""Finding the engines that run under this daemon's label: at its start, and again and again.

What to do with each container, `adoption.decide` says. After a start, known engines are
compared with what Podman lists (which shows what nothing told of), and containers that
belong to no engine are removed once they were seen twice.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress

import structlog

from containers import labels as container_labels
from containers.labels import Labels
from containers.podman import Podman
from containers.spec import ContainerState
from containers.sweep import sweep
from orchestrator import adoption
from orchestrator.actor import Actor
from orchestrator.adoption import Adoption, Found
from orchestrator.context import Context
from orchestrator.decision import Decision
from orchestrator.engine import SOCKET_NAME, Engine, read_key, remove_files, socket_folder
from orchestrator.engine_client import EngineUnreachable
from orchestrator.errors import DatabaseFailed
from orchestrator.leftovers import Leftovers, Seen
from orchestrator.plan import Plan
from orchestrator.runner import Runner
from orchestrator.runtimes import adapter
from orchestrator.views import Desired, State

log = structlog.get_logger("adoption")
HEALTH_LIMIT = 2.0
"""Seconds that an adopted engine may take to answer before it counts as busy."""
CONMON_DEAD = "conmon_dead"
ADOPTION = "adoption"
"""The author of a wish that was lost: what runs is meant to run."""


class Adopter:
    """Adopts and relists for one daemon."""

    def __init__(self, context: Context, podman: Podman) -> None:
        self._c = context
        self._podman = podman
        self._owner = context.paths.owner
        self._suspects: set[str] = set()
        self.leftovers = Leftovers(context, podman)

    async def adopt(self, define: Callable[[str], Actor | None], actors: Mapping[str, Actor]) -> None:
        """Give every engine that runs to its actor and take down what cannot be kept. Once, before the actors run.

        What is taken down goes in the background, drained if it serves: one container that does not
        stop must not keep the others from being adopted.
        """
        seen = await self._list()
        proven = await self._c.store.proven()
        asked = {row.deployment: row.desired for row in await self._c.store.desired()}
        newest = _newest_running(seen)
        kept: set[str] = set()
        checks: dict[asyncio.Task[None], tuple[Seen, Actor]] = {}
        for one in seen:
            actor = None if one.labels is None else define(one.labels.deployment)
            decision = self._decide(one, actor, asked, proven, newest)
            self._tell(one, decision)
            if decision.action is Adoption.REMOVE or one.labels is None or one.plan is None or actor is None:
                self._take_down(one, actor, proven)
                kept |= set() if one.labels is None else {one.labels.engine}
                continue
            engine = self._engine(one, one.labels, one.plan, ready=decision.action is Adoption.ADOPT)
            kept.add(engine.id)
            if actor.deployment.engine(engine.generation) is None:
                checks[asyncio.create_task(self._check_then_adopt(actor, engine, asked))] = one, actor
        if checks:
            await asyncio.wait(checks)
        for check, (one, actor) in checks.items():
            error = check.exception()
            if error is not None:  # no descriptor is left to watch it, say: the others are adopted all the same
                log.error("not_adopted", container=one.container.name, exc_info=error)
                evidence = {"error": f"{type(error).__name__}: {error}"}
                self._tell(one, Decision(Adoption.REMOVE, "not_adopted", evidence))
                self._take_down(one, actor, proven)
        known = {e.id for a in actors.values() for e in a.deployment.engines}
        await asyncio.to_thread(self._tidy, kept | known)
        for gone in sorted(proven - kept - known):  # the daemon before died between its end and this
            with suppress(DatabaseFailed):
                await self._c.store.forget_engine(gone)

    async def relist(self, actors: Sequence[Actor]) -> None:
        """Compare what Podman lists with what is known."""
        serving = {
            e.id: (a, e) for a in actors for e in a.deployment.live() if e.state in (State.READY, State.DRAINING)
        }
        seen = await self._list()
        alive = {one.labels.engine for one in seen if one.labels is not None and one.container.alive}
        for engine_id, (actor, engine) in serving.items():
            if engine_id not in alive and not engine.exited.is_set() and engine.container_id is not None:
                # asked again by itself: a listing of many takes a while, and is old when it is there
                state = await self._podman.inspect(engine.container_id)
                if state is None or not state.alive:
                    engine.exited.set()
                    actor.wake()
        self._see_supervisors(seen, serving)
        known = {e.id for a in actors for e in a.deployment.live()}
        strangers = {
            one.container.id
            for one in seen
            if (one.labels is None or one.labels.engine not in known) and one.container.id not in self.leftovers
        }
        seen_twice, self._suspects = strangers & self._suspects, strangers
        if not seen_twice and not self.leftovers:
            return
        proven, defined = await self._c.store.proven(), {a.deployment.name: a for a in actors}
        self.leftovers.look(seen, proven)
        for one in seen:
            if one.container.id in seen_twice:
                self._tell(one, Decision(Adoption.REMOVE, "belongs_to_no_engine", {"state": one.container.state}))
                self._take_down(one, None if one.labels is None else defined.get(one.labels.deployment), proven)

    def _see_supervisors(self, seen: Sequence[Seen], serving: Mapping[str, tuple[Actor, Engine]]) -> None:
        """An engine whose conmon died serves on, and its end is seen, for the kernel tells that; what is lost is its
        log and Podman's word for it."""
        for one in seen:
            engine = None if one.labels is None else serving.get(one.labels.engine, (None, None))[1]
            if engine is None:
                continue
            if one.container.conmon_alive or not one.container.alive:
                self._c.issues.close(CONMON_DEAD, engine.deployment, deployment=engine.deployment)
                continue
            self._c.issues.open(
                CONMON_DEAD,
                engine.deployment,
                f"{engine.name} serves on, and what keeps its log (conmon {one.container.conmon_pid}) has died",
                hint=f"`outrider restart {engine.deployment}` when it suits; until then it has no log",
                evidence={"container": one.container.id, "conmon": one.container.conmon_pid, "pid": engine.pid},
                deployment=engine.deployment,
            )
        served = {engine.deployment for _, engine in serving.values()}
        for issue in self._c.issues.list():
            if issue.code == CONMON_DEAD and issue.subject not in served:
                self._c.issues.close(CONMON_DEAD, issue.subject, deployment=issue.subject)

    async def close(self) -> None:
        """Leave what is being taken down to the next daemon."""
        await self.leftovers.close()

    async def sweep(self, actors: Sequence[Actor]) -> object:
        """Remove what killed Podman services left behind, passing over what is being created now."""
        label = (container_labels.OWNER, self._owner)
        busy = _Busy(self._c.runner, actors, self.leftovers)
        prefix, grace = f"outrider-{self._owner[:8]}-", self._c.timing.stop_grace
        return await sweep(self._podman, label, prefix, busy=busy, stop_grace=grace)

    async def _list(self) -> Sequence[Seen]:
        containers = await self._podman.containers(container_labels.owned_by(self._owner))
        return [Seen(c, *_read(c)) for c in containers]

    def _decide(
        self,
        one: Seen,
        actor: Actor | None,
        asked: Mapping[str, Desired],
        proven: frozenset[str],
        newest: Mapping[str, int],
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
                defined=actor is not None,
                stopped=actor is not None and asked.get(actor.deployment.name) is Desired.STOPPED,
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
            evidence={
                "container": one.container.id,
                "generation": None if one.labels is None else one.labels.generation,
                "reason": decision.reason,
                **decision.evidence,
            },
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
            adopted=True,
        )

    async def _check_then_adopt(self, actor: Actor, engine: Engine, asked: Mapping[str, Desired]) -> None:
        """A proven engine serves on. One that nobody listens for any more has to prove itself again; one that
        is merely slow to answer is busy, and its streams go on."""
        if engine.pid is not None:
            engine.follow(engine.pid)
        if engine.port is not None:
            await asyncio.to_thread(self._c.runner.ports.keep, engine.port)
        loading = engine.state is not State.READY
        if not loading:
            path = adapter(engine.plan.runtime).probing.models_path
            try:
                async with self._c.runner.client(engine) as client:
                    await client.get(path, timeout=HEALTH_LIMIT)
            except EngineUnreachable as error:
                if not error.busy:
                    engine.state, engine.ready_at = State.LOADING, None
        self._c.admission.adopt(engine.id, engine.plan, loading=loading)
        actor.adopt(engine)
        d = actor.deployment
        if d.name not in asked and d.desired_by is None:  # nor did anybody ask meanwhile
            d.desired, d.desired_by = Desired.RUNNING, ADOPTION
            try:
                await self._c.store.set_desired(d.name, Desired.RUNNING, ADOPTION, self._c.clock.wall())
            except DatabaseFailed as error:
                self._c.journal.emit("daemon", "not_noted", f"{d.name}: {error.detail}", deployment=d.name)

    def _take_down(self, one: Seen, actor: Actor | None, proven: Collection[str]) -> None:
        self.leftovers.take_down(one, actor, proven=one.labels is not None and one.labels.engine in proven)

    def _tidy(self, kept: set[str]) -> None:
        """Socket folders and keys of engines that no longer exist."""
        for entry in self._c.paths.engines.iterdir():
            engine = entry.name.removesuffix(".key")
            if engine not in kept:
                remove_files(self._c.paths, engine)


class _Busy(Collection[str]):
    """Names and ids that a sweep passes over, looked up when it asks: a create may begin while it goes round."""

    def __init__(self, runner: Runner, actors: Sequence[Actor], leaving: Collection[str]) -> None:
        self._runner = runner
        self._actors = actors
        self._leaving = leaving

    def _all(self) -> set[str]:
        engines = [engine for actor in self._actors for engine in actor.deployment.live()]
        names = {self._runner.container_name(engine) for engine in engines}
        return names | {e.container_id for e in engines if e.container_id is not None} | set(self._leaving)

    def __contains__(self, item: object) -> bool:
        return item in self._all()

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


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
