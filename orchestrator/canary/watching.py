"""Looking at engines that serve: whether they draft as their plans say, and now and then whether they still say what
their weights say. Never in the way of a request: an engine that works is left alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from orchestrator import proof
from orchestrator.canary import drafting
from orchestrator.canary.asking import FAILED
from orchestrator.canary.drafting import Drafts, Window
from orchestrator.canary.proving import Tail
from orchestrator.context import Context
from orchestrator.decision import Decision
from orchestrator.deployment import Deployment
from orchestrator.engine import Engine
from orchestrator.engine_client import EngineClient
from orchestrator.errors import EngineFailed, OutriderError
from orchestrator.plan import Method
from orchestrator.runtimes import EngineCounters, adapter
from orchestrator.views import State

CODES = {
    Drafts.USELESS: "drafts_useless",
    Drafts.OFF: "speculation_off",
    Drafts.QUIET: "speculation_silent",
    Drafts.TOO_WIDE: "drafts_too_wide",
}
"""Issues, by verdict."""
TOLD = {
    Drafts.USELESS: "drafts, and nothing of it is accepted: {length} tokens a step over {drafts} drafts",
    Drafts.OFF: "should draft with {method} and says that it does not: {why}",
    Drafts.QUIET: "should draft with {method}, and in {generated} tokens it did not: {why}",
    Drafts.TOO_WIDE: "drafts more than its plan says, which is {planned} at once: {drafted} in {drafts} drafts",
}
HINTS = {
    Drafts.USELESS: "this drafter slows the model down: give it another one, or `outrider apply {name}` with"
    ' speculation.method = "none"',
    Drafts.OFF: "`outrider logs {name}` has the engine's own words; `outrider restart {name}` starts it anew",
}
log = structlog.get_logger("canaries")
LOOK_AGAIN = 0.2
"""Seconds between two looks whether a request has come while a canary runs."""


class Fails(Protocol):
    """Who ends an engine that answers wrongly (`orchestrator.actor.Actor`)."""

    @property
    def deployment(self) -> Deployment: ...
    async def fail_engines(self, generations: Collection[int], verdict: EngineFailed) -> None: ...


@dataclass(slots=True)
class _Watched:
    """One engine. `moved` is when its counters last did."""

    engine: Engine
    base: EngineCounters
    last: EngineCounters
    moved: float
    asked: float
    doubted: bool = False
    condemned: EngineFailed | None = None
    """It answered wrongly twice, and is ended once automation is no longer paused."""
    verdict: Drafts = field(default=Drafts.UNKNOWN)


class CanaryWatch:
    """The watch of one host."""

    def __init__(self, context: Context) -> None:
        self._canary = context.runner.canary
        self._client = context.runner.client
        self._tail: Tail = context.runner.tail
        self._traffic = context.gateway
        self._automation = context.automation
        self._journal = context.journal
        self._issues = context.issues
        self._clock = context.clock
        self._timing = context.timing
        self._watched: dict[str, _Watched] = {}

    async def look(self, actors: Sequence[Fails]) -> None:
        """One look at every engine that serves."""
        serving = {e.id: (a, e) for a in actors for e in a.deployment.engines if _serves(a.deployment, e)}
        for name in [name for name in self._watched if name not in serving]:
            self._forget(self._watched.pop(name).engine)
        await asyncio.gather(*(self._quietly(actor, engine) for actor, engine in serving.values()))

    async def watch(self, actors: Callable[[], Sequence[Fails]]) -> None:
        """Look for ever. What an engine is asked may take it minutes, so a round is no sign of life of the daemon."""
        while True:
            await self.look(actors())
            await asyncio.sleep(self._timing.canary_look)

    async def _quietly(self, actor: Fails, engine: Engine) -> None:
        """One engine keeps nobody from looking at the others, whatever it answers."""
        try:
            await self._look(actor, engine)
        except (OutriderError, OSError):
            pass  # one that does not answer is others' business
        except Exception:
            log.exception("look_crashed", engine=engine.name)

    async def _look(self, actor: Fails, engine: Engine) -> None:
        runtime, now = adapter(engine.plan.runtime), self._clock.now()
        async with self._client(engine) as client:
            found = await proof.counters(client, runtime, self._timing)
            if found is None:
                return
            watched = self._watched.get(engine.id)
            if watched is None:
                self._watched[engine.id] = _Watched(engine, found, found, now, now)
                return
            watched.last = found
            # by what clients were given: the watch over its health makes its counters move too
            watched.moved = max(watched.moved, self._traffic.data_at(engine.id) or watched.moved)
            if engine.plan.method is not Method.NONE:
                says = await proof.says_speculating(client, runtime, self._timing)
                await self._drafting(watched, found, says, client)
            if watched.condemned is not None and self._automation.paused(engine.deployment) is None:
                await actor.fail_engines([engine.generation], watched.condemned)
            elif self._due(actor.deployment, watched, now):
                await self._ask(actor, watched, client)

    # drafting

    async def _drafting(
        self, watched: _Watched, found: EngineCounters, says: bool | None, client: EngineClient
    ) -> None:
        engine = watched.engine
        verdict = drafting.judge(engine.plan, Window.between(watched.base, found), says)
        if verdict.action is Drafts.UNKNOWN:
            return
        if verdict.action is Drafts.QUIET:
            if self._busy(engine):
                return
            fault = await self._does_not_draft(engine, client)
            watched.base = watched.last = (
                await proof.counters(client, adapter(engine.plan.runtime), self._timing) or found
            )
            if fault is None:
                self._settle(watched, Decision(Drafts.FINE, "drafts", verdict.evidence), "")
                return
        elif verdict.action is not Drafts.OFF:
            watched.base = found  # the next verdict is of what comes from now on
        why = ""
        if verdict.action in (Drafts.QUIET, Drafts.OFF):
            name, why = drafting.cause(engine.plan, [line.text for line in await self._tail(engine)])
            verdict = Decision(verdict.action, verdict.reason, {**verdict.evidence, "cause": name})
        self._settle(watched, verdict, why)

    async def _does_not_draft(self, engine: Engine, client: EngineClient) -> EngineFailed | None:
        """Put to the proof: requests for a token or two never draft, and that is no fault."""
        try:
            await proof.prove(client, adapter(engine.plan.runtime), engine.plan, timing=self._timing)
        except EngineFailed as error:
            return error if error.code in drafting.SILENT else None
        return None

    def _settle(self, watched: _Watched, verdict: Decision[Drafts], why: str) -> None:
        engine, name = watched.engine, watched.engine.deployment
        for kind, code in CODES.items():
            if kind is not verdict.action:
                self._issues.close(code, name, f"{engine.name} drafts as its plan says", deployment=name)
        watched.verdict = verdict.action
        if verdict.action is Drafts.FINE:
            return
        words = {**verdict.evidence, "method": engine.plan.method.value, "why": why}
        self._issues.open(
            CODES[verdict.action],
            name,
            f"{engine.name} {TOLD[verdict.action].format(**words)}",
            hint=HINTS.get(verdict.action, HINTS[Drafts.OFF]).format(name=name),
            evidence={"generation": engine.generation, "drafter": engine.plan.drafter, **verdict.evidence},
            deployment=name,
        )

    def _forget(self, engine: Engine) -> None:
        for code in CODES.values():
            self._issues.close(code, engine.deployment, f"{engine.name} is gone", deployment=engine.deployment)

    # the canary of an idle hour

    def _busy(self, engine: Engine) -> bool:
        return bool(self._traffic.engine_in_flight(engine.id) or self._traffic.waiting(engine.deployment))

    def _due(self, deployment: Deployment, watched: _Watched, now: float) -> bool:
        """Whether it is time, and nobody wants anything of it. Where the gateway is silent nobody knows that."""
        return (
            now - watched.asked >= self._timing.canary_period
            and now - watched.moved >= self._timing.canary_idle
            and self._traffic.heard is True
            and not self._busy(watched.engine)
            and not deployment.busy
            and self._canary is not None
        )

    async def _ask(self, actor: Fails, watched: _Watched, client: EngineClient) -> None:
        engine = watched.engine
        watched.asked = self._clock.now()
        if self._canary is None:
            return
        work = asyncio.ensure_future(self._canary.check(engine, client, whole=True))
        try:
            while not work.done() and not self._busy(engine):
                await asyncio.wait({work}, timeout=LOOK_AGAIN)
            if not work.done():
                return  # a request goes before; the connection is closed, and the engine stops
            await self._failed(actor, watched, work)
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait({work})
            with suppress(OutriderError, OSError):
                found = await proof.counters(client, adapter(engine.plan.runtime), self._timing)
                watched.base = watched.last = found or watched.last  # what a canary took is nobody's traffic

    async def _failed(self, actor: Fails, watched: _Watched, work: asyncio.Future[None]) -> None:
        """One that answers wrongly while it serves is asked once more at the next look, and then ended: its successor
        is asked before it serves, and the second one that fails refutes the combination."""
        engine = watched.engine
        error = work.exception()
        if error is None:
            watched.doubted, watched.condemned = False, None
            return
        if not isinstance(error, EngineFailed) or error.code != FAILED:
            raise error
        if not watched.doubted:
            watched.doubted, watched.asked = True, float("-inf")
            return
        author = self._automation.paused(engine.deployment)
        if author is not None:
            watched.condemned = error
            self._journal.emit(
                "canary",
                "would_restart",
                f"{engine.name} answers wrongly and would be ended; automation is paused by {author}",
                deployment=engine.deployment,
                evidence={"by": author, **error.evidence},
            )
            return
        await actor.fail_engines([engine.generation], error)


def _serves(deployment: Deployment, engine: Engine) -> bool:
    return engine is deployment.serving_engine and engine.state is State.READY and not engine.exited.is_set()
