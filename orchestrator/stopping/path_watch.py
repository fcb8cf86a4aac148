"""Watching the way to engines that have a port: looked at from both ends, and given up for another port when broken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from containers import netns
from containers.ports import listens
from orchestrator.actor import Actor
from orchestrator.context import Context
from orchestrator.decision import Decision
from orchestrator.engine import Engine
from orchestrator.engine_client import EngineUnreachable
from orchestrator.errors import EngineFailed
from orchestrator.runner import CONTAINER_PORT
from orchestrator.runtimes import adapter
from orchestrator.stopping import network_path
from orchestrator.stopping.network_path import LOOKS, Ends, Way
from orchestrator.views import State

CODE = "network_path_broken"
LIMIT = 5.0
"""Seconds that a look may take at either end. A busy engine names its models in milliseconds; its health path may be a
generation (SGLang's is), which waits behind those of clients."""


class PathWatch:
    """The ways to one host's engines."""

    def __init__(self, context: Context, inside: Callable[..., int | None] = netns.status_inside) -> None:
        """`inside` asks an engine in its own network."""
        self._c = context
        self._inside = inside
        self._broken: dict[str, int] = {}
        """Looks in a row that found the way broken, by engine."""

    async def look(self, actors: Sequence[Actor]) -> None:
        """Look at each way once, and move engines whose way stays broken to another port."""
        ported = [
            (actor, engine)
            for actor in actors
            for engine in actor.deployment.live()
            if engine.port is not None and engine.state is State.READY and not engine.exited.is_set()
        ]
        await asyncio.gather(*(self._look(actor, engine) for actor, engine in ported))
        known = {engine.id for _, engine in ported}
        self._broken = {engine: count for engine, count in self._broken.items() if engine in known}

    async def broken(self, engine: Engine) -> EngineFailed | None:
        """Whether the engine answers, and only the way to it is broken: for whoever finds it silent."""
        if engine.port is None or engine.pid is None:
            return None
        decision = await self._ends(engine)
        return self._failure(engine, decision) if decision.action is Way.BROKEN else None

    async def _look(self, actor: Actor, engine: Engine) -> None:
        decision = await self._ends(engine)
        if decision.action is not Way.BROKEN:
            self._broken.pop(engine.id, None)
            if decision.action is Way.OPEN:
                self._c.issues.close(CODE, engine.name, deployment=engine.deployment)
            return
        seen = self._broken[engine.id] = self._broken.get(engine.id, 0) + 1
        if seen < LOOKS or engine.state is not State.READY:
            return
        failure = self._failure(engine, decision)
        paused = self._c.automation.paused(engine.deployment)
        if paused is not None:
            hint = (
                f"`outrider restart {engine.deployment}` gives it another port; {paused} paused what is done by itself"
            )
            self._open(engine, failure, hint)
            return
        self._c.journal.emit(
            "lifecycle",
            CODE,
            f"{failure.detail}: another engine of the same plan gets another port, and no failure is counted",
            deployment=engine.deployment,
            evidence={"generation": engine.generation, "looks": seen, **failure.evidence},
        )
        self._broken.pop(engine.id)
        await actor.renew(engine.generation)

    async def _ends(self, engine: Engine) -> Decision[Way]:
        path, pid = adapter(engine.plan.runtime).probing.models_path, engine.pid or 0
        try:
            async with self._c.runner.client(engine) as client:
                await client.get(path, timeout=LIMIT)
        except EngineUnreachable as error:
            connected = error.connected
        else:
            return network_path.decide(Ends(True, True, None, False, None))
        seen, inside = True, None
        try:
            inside = await asyncio.to_thread(self._inside, pid, CONTAINER_PORT, path, limit=LIMIT)
        except OSError:
            seen = False
        heard = await asyncio.to_thread(listens, pid, CONTAINER_PORT)
        return network_path.decide(Ends(False, connected, inside, seen, heard))

    def _failure(self, engine: Engine, decision: Decision[Way]) -> EngineFailed:
        does = "answers" if decision.reason == "answers_inside" else "listens"
        return EngineFailed(
            CODE,
            f"{engine.name} {does} inside its container, and its port {engine.port} leads nowhere",
            retryable=True,
            hint="it gets another port by itself; `iptables -t nat -S | grep 17` shows rules that were left behind",
            evidence={"port": engine.port, "reason": decision.reason, **decision.evidence},
        )

    def _open(self, engine: Engine, failure: EngineFailed, hint: str) -> None:
        self._c.issues.open(
            CODE, engine.name, failure.detail, hint=hint, evidence=failure.evidence, deployment=engine.deployment
        )
