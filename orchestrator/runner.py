"""Bringing one engine up and taking it down: the steps, each with its deadline, none with a policy.

Up: image, memory, container, health, proof. Down: the stop ladder (drain, SIGTERM, SIGKILL,
forced removal), then the engine's files. Every step may be cut off at any point (a stop, a
crash, a new daemon): `take_down` works from whatever is left.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import structlog

from containers import labels as container_labels
from containers.errors import ContainerError, ImageMissing
from containers.podman import Podman
from containers.ports import Ports, listens
from containers.spec import CacheVolume, ContainerSpec, ContainerState, LogLine, Mount, Network
from containers.validator import Rules, validate
from hosts.roots import Roots
from orchestrator import proof
from orchestrator.admission import Admission
from orchestrator.canary import Canary
from orchestrator.canary.proving import prove
from orchestrator.clock import Clock
from orchestrator.crash_points import Place, reached
from orchestrator.decision import Decision
from orchestrator.disk import disk_error
from orchestrator.endings import why_it_ended
from orchestrator.engine import Engine, make_socket_folder, remove_files, socket_folder, write_key
from orchestrator.engine_client import EngineClient, EngineUnreachable
from orchestrator.errors import EngineFailed
from orchestrator.events import Journal
from orchestrator.finishing import finished
from orchestrator.gateway_link import Drained, GatewayLink
from orchestrator.health.loading import Load
from orchestrator.health.starting import Start, marks_of
from orchestrator.loading_marks import LoadingMarks
from orchestrator.model_files import check_mounted
from orchestrator.paths import Paths
from orchestrator.plan import KEY, PORT, SOCKET_FOLDER
from orchestrator.runtimes import adapter
from orchestrator.stopping import ladder
from orchestrator.stopping.clearing import Clearing
from orchestrator.timing import Timing
from orchestrator.views import State

T = TypeVar("T")
log = structlog.get_logger("runner")
LOG_TAIL = 200
LOG_LIMIT = 5.0
"""Seconds for the last lines of a log, which take milliseconds: what waits for them is a stop."""
CONTAINER_PORT = 8080
UNPROVEN_GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL for an engine that has served nobody. It has nothing to finish, and in
its first moments, as process 1 of its container and without a handler yet, the kernel drops its SIGTERM."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What marks this daemon's containers."""

    owner: str
    host: str


class Runner:
    """The steps of one host. Stateless but for what it is given."""

    def __init__(
        self,
        *,
        podman: Podman,
        paths: Paths,
        identity: Identity,
        admission: Admission,
        model_folders: Callable[[], tuple[str, ...]],
        gateway: GatewayLink,
        ports: Ports,
        clock: Clock,
        timing: Timing,
        log_bytes: Callable[[], int],
        marks: LoadingMarks,
        refresh: Callable[[], Awaitable[None]] | None = None,
        clearing: Clearing | None = None,
        journal: Journal | None = None,
        canary: Canary | None = None,
        roots: Roots | None = None,
    ) -> None:
        self.podman = podman
        self.paths = paths
        self.identity = identity
        self.admission = admission
        self._model_folders = model_folders
        self.gateway = gateway
        self.ports = ports
        self.clock = clock
        self.timing = timing
        self._log_bytes = log_bytes
        self._marks = marks
        self._refresh = refresh
        self._clearing = clearing
        self._journal = journal
        self.canary = canary
        self._roots = roots or Roots()

    # up

    async def bring_up(self, engine: Engine, *, limit: float, seen: Callable[[State, str], None]) -> proof.Proof:
        """From nothing, or from wherever a container already is, to ready.

        `limit` is the longest the load may take, `seen` is told each state and detail. Raises an
        `OutriderError`; what was made by then is left for `take_down`.
        """
        if engine.container_id is None:
            seen(State.PULLING, f"looking for image {engine.plan.image[:40]}")
            await self._image(engine)
            engine.move(State.CREATING)
            seen(State.CREATING, "reserving memory and creating the container")
            await self.admission.reserve(
                engine.id,
                engine.plan,
                lambda device, before: seen(State.CREATING, f"waiting for {before} to reserve memory of {device}"),
            )
            await self._mark(engine)
            reached(Place.RESERVED)
            await finished(self._create(engine))
            reached(Place.CREATED)
            await finished(self.podman.start(engine.container_id or ""))
            reached(Place.STARTED)
            await finished(self._follow(engine))
            engine.move(State.LOADING)
        else:
            await self._mark(engine)
        return await self._until_ready(engine, limit, seen)

    async def _mark(self, engine: Engine) -> None:
        """A load into the system's own memory can freeze the host; one into a GPU's own ends with an error."""
        if self.admission.on_host(engine.plan):
            await self._marks.place(engine)

    async def _until_ready(self, engine: Engine, limit: float, seen: Callable[[State, str], None]) -> proof.Proof:
        runtime = adapter(engine.plan.runtime)
        async with self.client(engine) as client:
            if engine.state is State.LOADING:
                seen(State.LOADING, "waiting for the engine to load")
                await self._unless_it_exits(
                    engine,
                    Start(
                        client,
                        runtime,
                        self.timing,
                        self.clock,
                        limit,
                        lambda detail: seen(State.LOADING, detail),
                        model=engine.plan.model,
                        cut_off=self._cut_off(engine),
                        marks=lambda: marks_of(engine, self.tail, self._roots),
                        extended=lambda decision: self._tell_extended(engine, decision),
                    ).wait(),
                )
                reached(Place.HEALTHY)
                engine.move(State.WARMING)
            seen(State.WARMING, "proving it with a real completion")
            work = prove(engine, client, tail=self.tail, journal=self._journal, timing=self.timing)
            proven = await self._unless_it_exits(engine, work)
            if self.canary is not None:
                seen(State.WARMING, "asking it what its weights say")
                await self._unless_it_exits(engine, self.canary.before_ready(engine, client))
        engine.move(State.READY)
        engine.ready_at = self.clock.now()
        try:
            await self._marks.lift(engine.deployment, engine.generation)
            await self.read_host()
        finally:
            self.admission.settle(engine.id)
        return proven

    def _tell_extended(self, engine: Engine, decision: Decision[Load]) -> None:
        if self._journal is not None:
            self._journal.emit(
                "lifecycle",
                "load_extended",
                f"{engine.name} takes longer than it should, and gets on: {decision.evidence['last_progress']}",
                deployment=engine.deployment,
                evidence={"generation": engine.generation, **decision.evidence},
            )

    def _cut_off(self, engine: Engine) -> Callable[[], EngineFailed | None]:
        """Asked when nobody answers from outside: the failure of an engine that listens inside all the same.

        A Podman service that died inside a start may have left a rule that leads its port elsewhere, and nothing
        but another port helps (found with Podman 4.3.1; `podman network reload` does not).
        """

        def ask() -> EngineFailed | None:
            if engine.port is None or engine.pid is None or not listens(engine.pid, CONTAINER_PORT):
                return None
            return EngineFailed(
                "network_path_broken",
                f"{engine.name} listens in its container, and its port {engine.port} leads nowhere",
                retryable=True,
                hint="it gets another port at the next start; `iptables -t nat -S | grep 17` shows rules left behind",
                evidence={"port": engine.port},
            )

        return ask

    async def read_host(self) -> None:
        """What is free now. A reading that fails is no reason to lose an engine that works, or to keep one."""
        try:
            if self._refresh is not None:
                await self._refresh()
        except Exception:
            log.exception("host_not_read")

    async def _image(self, engine: Engine) -> None:
        if await self.podman.image(engine.plan.image) is None:
            raise ImageMissing(
                f"image {engine.plan.image} is not in local storage",
                hint=f"`outrider start {engine.deployment}` plans anew, with an image that is here or can be had",
                evidence={"image": engine.plan.image},
            )

    async def _create(self, engine: Engine) -> None:
        try:
            folder = await asyncio.to_thread(make_socket_folder, self.paths, engine.id)
            reached(Place.FOLDER_MADE)
            await asyncio.to_thread(write_key, self.paths, engine.id, engine.key)
            reached(Place.KEY_WRITTEN)
        except OSError as error:
            raise disk_error(error, self.paths.engines, f"the socket folder of {engine.name}") from error
        if not engine.plan.socket:
            engine.port = await asyncio.to_thread(self.ports.take)
        spec = self.spec(engine, str(folder))
        validate(spec, self.rules(engine))
        await asyncio.to_thread(check_mounted, engine.plan)  # after the validator: nobody else's paths are asked about
        engine.container_id = await self.podman.create(spec)

    def container_name(self, engine: Engine) -> str:
        """Unique per attempt: the ghost of a create that was cut off may hold an earlier one."""
        return f"outrider-{self.identity.owner[:8]}-{engine.name}-{engine.id[:4]}"

    def spec(self, engine: Engine, folder: str) -> ContainerSpec:
        """The container of an engine: its plan with the launch parameters filled in."""
        plan = engine.plan
        fill = {KEY: engine.key, PORT: str(CONTAINER_PORT)}
        labels = container_labels.write(
            container_labels.Labels(
                deployment=engine.deployment,
                generation=engine.generation,
                plan=plan.digest,
                host=self.identity.host,
                owner=self.identity.owner,
                plan_json=json.dumps(plan.to_dict(), separators=(",", ":")),
                engine=engine.id,
            )
        )
        if engine.port is not None:
            labels[container_labels.PORT] = str(engine.port)
        return ContainerSpec(
            name=self.container_name(engine),
            image=plan.image,
            argv=tuple(_filled(a, fill) for a in plan.argv),
            env={k: _filled(v, fill) for k, v in plan.env.items()},
            labels=labels,
            mounts=(
                *(Mount(m.source, m.target) for m in plan.mounts),
                Mount(folder, SOCKET_FOLDER, read_only=False),
            ),
            caches=tuple(CacheVolume(name, target) for name, target in plan.caches),
            devices=plan.devices,
            groups=plan.groups,
            network=Network.NONE if plan.socket else Network.BRIDGE,
            host_port=engine.port,
            container_port=None if plan.socket else CONTAINER_PORT,
            memory_limit=plan.limits.memory,
            shm_size=plan.limits.shm,
            profile=plan.profile,
            stop_timeout=self.timing.stop_grace,
            log_bytes=self._log_bytes(),
        )

    def rules(self, engine: Engine) -> Rules:
        """What this engine's container may be at most."""
        return Rules(
            model_folders=self._model_folders(),
            socket_folder=str(socket_folder(self.paths, engine.id)),
            allowed_args=adapter(engine.plan.runtime).flags,
        )

    async def _follow(self, engine: Engine) -> None:
        """Watch the process of a container that was just started."""
        state = await self.podman.inspect(engine.container_id or "")
        if state is None or state.pid is None or not state.alive:
            engine.exited.set()
        else:
            engine.follow(state.pid)

    async def _unless_it_exits(self, engine: Engine, work: Awaitable[T]) -> T:
        """`work`, unless the engine's process ends first: then `EngineFailed` with what its log says."""
        task = asyncio.ensure_future(work)
        exited = asyncio.ensure_future(engine.exited.wait())
        try:
            await asyncio.wait({task, exited}, return_when=asyncio.FIRST_COMPLETED)
            if task.done() and not (engine.exited.is_set() and isinstance(task.exception(), EngineUnreachable)):
                return task.result()
            raise await self.why_it_ended(engine)
        finally:
            rest = [future for future in (task, exited) if not future.done()]
            for future in rest:
                future.cancel()
            if rest:
                await asyncio.wait(rest)  # does not raise their cancellation: one that arrives here is the caller's
            if task.done() and not task.cancelled():
                task.exception()  # looked at, so that it is not reported as never retrieved

    async def why_it_ended(self, engine: Engine) -> EngineFailed:
        """The reason a dead engine gives."""
        return await why_it_ended(engine, self.podman, self.clock, self.tail)

    async def tail(self, engine: Engine, lines: int = LOG_TAIL) -> list[LogLine]:
        """The last lines of the engine's log; none when Podman cannot say."""
        if engine.container_id is None:
            return []
        found: list[LogLine] = []
        with suppress(ContainerError, TimeoutError):
            async with asyncio.timeout(min(LOG_LIMIT, self.timing.podman_call)):
                found.extend([x async for x in self.podman.logs(engine.container_id, tail=lines, follow=False)])
        return found

    def client(self, engine: Engine) -> EngineClient:
        """A client of this engine; the caller closes it."""
        return EngineClient(
            socket=engine.socket if engine.plan.socket else None,
            port=None if engine.plan.socket else engine.port,
            key=engine.key,
            timeout=self.timing.engine_call,
        )

    # down

    async def drain(self, engine: Engine, revision: int) -> Drained:
        """Have the gateway finish what the engine is working on; `revision` is the routing table's."""
        return await self.gateway.drain(engine.id, self.timing.drain, revision)

    async def take_down(self, engine: Engine) -> None:
        """Stop and remove the container, wait until its memory is free, then remove the engine's files.

        Repeating it is harmless. Raises `ContainerError` while Podman cannot remove the container, and `EngineFailed`
        `wedged` with the holders when processes or memory outlive it.
        """
        if engine.container_id is None:
            # a create that was cut off may have made a container all the same
            engine.container_id = await self._unrecorded(engine)
        if engine.container_id is not None:
            await self._end(engine, engine.container_id)
            reached(Place.STOPPED)
            await self.podman.remove(engine.container_id)
            reached(Place.REMOVED)
            await self.cleared(engine)
        engine.unfollow()
        if engine.port is not None:
            await asyncio.to_thread(self.ports.give_back, engine.port)
            engine.port = None
        try:
            await asyncio.to_thread(remove_files, self.paths, engine.id)
        except OSError as error:
            raise disk_error(error, self.paths.engines, f"the removal of {engine.name}'s files") from error
        reached(Place.FILES_GONE)
        await self.read_host()
        self.admission.forget(engine.id)
        await self._marks.lift(engine.deployment, engine.generation)

    async def cleared(self, engine: Engine) -> None:
        """Wait until nothing of a removed container is left, and its memory is free. Raises `EngineFailed` `wedged`."""
        if self._clearing is not None:
            await self._clearing.wait(engine)

    async def _end(self, engine: Engine, container: str) -> None:
        """The stop ladder; what was unusual about it is told."""
        grace = self.timing.stop_grace if engine.ready_at is not None else UNPROVEN_GRACE
        grace = min(grace, self.timing.stop_grace)
        ended = await ladder.end(self.podman, self.clock, container, grace, watch=engine.watch, exited=engine.exited)
        text = ladder.unusual(engine.name, ended)
        if text is not None and self._journal is not None:
            evidence = {"generation": engine.generation, "rung": ended.rung.value, "seconds": ended.seconds}
            evidence |= {} if ended.podman is None else {"podman": ended.podman}
            self._journal.emit("stop", "stop_escalated", text, deployment=engine.deployment, evidence=evidence)

    async def _unrecorded(self, engine: Engine) -> str | None:
        found: tuple[ContainerState, ...] = await self.podman.containers({container_labels.ENGINE: engine.id})
        return found[0].id if found else None


def _filled(text: str, values: dict[str, str]) -> str:
    for placeholder, value in values.items():
        text = text.replace(placeholder, value)
    return text
