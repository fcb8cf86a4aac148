"""The watch over engines that serve: looks, asks, judges, and acts on what is not well.

One look at all engines takes no longer than reading the kernel's counts of them; what they are asked is asked beside
it (`asking`). After a verdict that ends an engine nothing more is said of that container: the next one begins anew.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from hosts.roots import Roots
from hosts.work import Work, work_of
from orchestrator.actor import Actor
from orchestrator.admission import devices_of
from orchestrator.context import Context
from orchestrator.decision import Decision
from orchestrator.engine import Engine
from orchestrator.errors import EngineFailed, OutriderError
from orchestrator.health import degraded, live, ready
from orchestrator.health.asking import Asking, Said
from orchestrator.health.excuses import WINDOW, Looked, doing, idle
from orchestrator.health.live import NOTHING, Doing, Live, Question
from orchestrator.health.patience import (
    BYTES_PER_TOKEN,
    DECODE_PRIOR,
    PREFILL_PRIOR,
    Ahead,
    Rates,
    answer_limit,
    canary_limit,
    queues,
    stall_limit,
)
from orchestrator.health.ready import Facts, Ready
from orchestrator.health.results import Outcome, Probe, Record, Results
from orchestrator.health.signals import Asked, Delivery, Kernel, Seen
from orchestrator.views import State, VerdictView, Why

CODES: Mapping[Live, str] = {
    Live.STALLED: "engine_stalled",
    Live.REFUSES: "engine_unresponsive",
    Live.ERRORS: "engine_unresponsive",
}
WITNESSES: Mapping[str, str] = {
    "delivery": "no client was given anything",
    "silent": "its own word of its work did not come",
    "frozen": "its slots showed no progress",
    "canary": "a token of our own did not come",
    "stopped": "its processes were stopped",
    "idle": "its processes used no CPU",
}
HINT = "`outrider why {name}` shows each sign; the log's last lines are in `outrider logs {name}`"
Broken = Callable[[Engine], Awaitable[EngineFailed | None]]
log = structlog.get_logger("health")


_BUSY = {
    "compiling": "compiles",
    "first_use": "computes for the first request that it has",
    "reading_from_disk": "reads from a disk",
}
"""What it is seen to do (`excuses`), in words."""


@dataclass(slots=True)
class _Watched:
    """What is remembered of one container."""

    since: float
    first: float
    said: Said = field(default_factory=Said)
    looks: deque[Looked] = field(default_factory=deque)
    """The last looks at its processes, as far back as the CPU is looked at."""
    kernel: Kernel = field(default_factory=Kernel)
    born: frozenset[int] | None = None
    doing: Doing = NOTHING
    doing_since: float | None = None
    told: str = ""
    told_at: float = 0.0
    over: bool = False
    """Its end was decided: on hold until there is another container."""


class HealthWatch:
    """The watch of one host."""

    def __init__(self, context: Context, roots: Roots, *, broken: Broken) -> None:
        """`broken` says whether only the way to an engine is broken, and not the engine."""
        self._c = context
        self._roots = roots
        self._broken = broken
        self._results = Results()
        self._asking = Asking(context.runner.client, self._results, context.clock, context.timing)
        self._watched: dict[str, _Watched] = {}

    async def look(self, actors: Sequence[Actor]) -> None:
        """One look at every engine that serves."""
        serving = {
            e.container_id: (a, e)
            for a in actors
            for e in a.deployment.live()
            if e.container_id is not None and e.state in (State.READY, State.DRAINING) and not e.exited.is_set()
        }
        for container in [name for name in self._watched if name not in serving]:
            del self._watched[container]
            await self._asking.close(container)
            self._results.forget(container)
        for container, (actor, engine) in serving.items():
            try:
                await self._look(actor, engine, container)
            except OutriderError as error:
                log.warning("look_failed", engine=engine.name, code=error.code, error=error.detail)
            except Exception:  # of one engine: the others are looked at all the same
                log.exception("look_crashed", engine=engine.name)

    async def close(self) -> None:
        """Take back every question."""
        await self._asking.close()

    def awake_again(self) -> None:
        """This daemon did not run for a while: nothing that was found before counts."""
        self._results.reset()
        # what is on hold until there is another container stays so
        self._watched = {container: watched for container, watched in self._watched.items() if watched.over}

    async def _look(self, actor: Actor, engine: Engine, container: str) -> None:
        now, timing = self._c.clock.now(), self._c.timing
        watched = self._watched.get(container)
        if watched is None:
            spread = random.uniform(0, timing.health_period)  # noqa: S311 - so that many engines are not asked at once
            watched = self._watched[container] = _Watched(now, now + spread)
        if watched.over:
            return
        await self._look_at_processes(watched, engine, container, now)
        if now >= watched.first:
            self._ask(watched, engine, container, now)
        seen = self._seen(watched, engine, container, now)
        allowed = watched.doing if watched.doing_since is not None else NOTHING
        verdict = live.decide(Question(seen, timing.stall, allowed))
        if not verdict.action.alive and await self._broken(engine) is not None:
            verdict = Decision(Live.SUSPECT, "network_path_broken", verdict.evidence)  # and the engine works
        await self._judge(actor, engine, watched, seen, verdict)

    async def _look_at_processes(self, watched: _Watched, engine: Engine, container: str, now: float) -> None:
        if engine.pid is None:
            return
        work: Work | None = None
        with suppress(OSError):
            work = await asyncio.to_thread(work_of, self._roots, container, engine.pid)
        if work is None:
            return
        looked = Looked(now, work)
        watched.looks.append(looked)
        while len(watched.looks) > 2 and watched.looks[1].at <= now - WINDOW * self._c.timing.stall:
            watched.looks.popleft()
        if watched.born is None:
            watched.born = frozenset(pid for pid, _ in work.processes)
        before = watched.looks[0]
        if before is looked:
            return
        kernel = watched.kernel
        watched.kernel = Kernel(
            stopped_since=(kernel.stopped_since or now) if work.stopped else None,
            idle_since=(kernel.idle_since or before.at) if idle(before, looked) else None,
        )
        served = self._c.gateway.data_at(engine.id) is not None
        found = doing(
            before,
            looked,
            limit=self._c.timing.stall,
            scale=self._c.timing.scale,
            served=served,
            born=watched.born,
        )
        if found is not NOTHING or watched.doing.until is None or watched.doing.until <= now:
            watched.doing = found  # what it was seen to do lasts for a while
        watched.doing_since = None if watched.doing is NOTHING else (watched.doing_since or now)

    def _ask(self, watched: _Watched, engine: Engine, container: str, now: float) -> None:
        """Its own word at every look; a token of ours only when nothing else shows that it is alive."""
        self._asking.progress(engine, watched.said)
        known = self._results.get(container, Probe.RATES)
        if known is None or (known.asked_at is None and now - known.since >= self._c.timing.health_canary):
            self._results.drop(container, Probe.RATES)
            self._asking.rates(engine, watched.said)
        if engine.state is not State.READY:
            return
        found = self._results.get(container, Probe.CANARY)
        asked = None if found is None or found.last is None else found.last.at
        quiet = now - max(t for t in (watched.since, self._c.gateway.data_at(engine.id), asked) if t is not None)
        said, moved = watched.said.progress, watched.said.moved_at
        stall = self._c.timing.stall
        if queues(
            free=None if said is None else said.free,
            moved_s=None if moved is None else now - moved,
            quiet_s=quiet,
            stall=stall,
        ):
            return
        if quiet >= self._c.timing.health_canary:
            self._asking.canary(engine)

    def _seen(self, watched: _Watched, engine: Engine, container: str, now: float) -> Seen:
        timing = self._c.timing
        kind = "gpu" if engine.plan.devices else "cpu"
        rates = Rates(watched.said.prefill or PREFILL_PRIOR[kind], DECODE_PRIOR[kind])
        delivery, ahead = self._delivery(engine)
        limit = stall_limit(timing.stall, ahead, rates)
        whole = answer_limit(timing.stall, ahead, rates, context=engine.plan.context, parallel=engine.plan.parallel)
        patience = canary_limit(
            timing.health_patience,
            whole,
            answers=ahead.answers,
            in_flight=0 if delivery is None else delivery.in_flight,
            parallel=engine.plan.parallel,
        )
        progress = _asked(self._results.get(container, Probe.PROGRESS))
        said, heard = watched.said.progress, progress.ok_at
        fresh = said is not None and heard is not None and now - heard < timing.health_canary
        return Seen(
            now=now,
            since=max(watched.since, self._c.pauses.awake_since()),
            limit=limit,
            answer_limit=whole,
            patience=patience,
            parallel=engine.plan.parallel,
            delivery=delivery,
            progress=progress,
            moved_at=watched.said.moved_at,
            canary=_asked(self._results.get(container, Probe.CANARY)),
            kernel=watched.kernel,
            free=said.free if fresh and said is not None else None,
        )

    def _delivery(self, engine: Engine) -> tuple[Delivery | None, Ahead]:
        """What the gateway says; nothing where it was not heard lately."""
        told = self._c.gateway.told(engine.id)
        if told is None:
            return None, Ahead()
        at, said = told
        flights = said.get("flights")
        found = flights if isinstance(flights, Mapping) else {}
        number = {k: v for k, v in found.items() if isinstance(v, int | float) and not isinstance(v, bool)}
        answers = int(number.get("answers", 0))
        ahead = Ahead(
            prompts=int(number.get("prompt_bytes", 0) / BYTES_PER_TOKEN),
            longest=int(number.get("longest_prompt_bytes", 0) / BYTES_PER_TOKEN),
            answer=int(number["answer_tokens"]) if "answer_tokens" in number else (None if answers else 0),
            answers=answers,
        )
        oldest = number.get("oldest_s")
        return (
            Delivery(
                in_flight=int(said.get("in_flight") or 0),
                flowing=int(number.get("flowing", 0)),
                awaiting=int(number.get("awaiting", 0)),
                answers=answers,
                paused=int(number.get("paused", 0)),
                since=None if oldest is None else at - oldest,
                data_at=self._c.gateway.data_at(engine.id),
                ahead=ahead,
            ),
            ahead,
        )

    # what follows

    async def _judge(
        self, actor: Actor, engine: Engine, watched: _Watched, seen: Seen, verdict: Decision[Live]
    ) -> None:
        may_serve = ready.decide(
            Facts(
                draining=engine.state is State.DRAINING,
                live=verdict,
                errors=seen.canary.failed,
                refused=seen.progress.refused,
                delivers=seen.life > (seen.canary.pending or seen.progress.refused_since or seen.life),
            )
        )
        subjects = {engine.deployment, engine.name, *devices_of(engine.plan, self._c.admission.facts)}
        about = [i.code for i in self._c.issues.list() if i.subject in subjects]
        self._show(engine, verdict, may_serve, degraded.decide(about))
        self._admit(actor, engine, may_serve, tell=verdict.action.alive)
        if watched.told and seen.life > watched.told_at:
            watched.told = ""  # it has shown life since: the next silence is another one
        if verdict.action is Live.BUSY and watched.told != verdict.reason:
            watched.told, watched.told_at = verdict.reason, seen.now
            self._say(engine, "busy", f"{engine.name} is silent, for it {_BUSY[verdict.reason]}", verdict)
        if not verdict.action.alive:
            await self._end(actor, engine, watched, verdict)

    def _show(
        self, engine: Engine, verdict: Decision[Live], may: Decision[Ready], well: Decision[degraded.Degraded]
    ) -> None:
        engine.verdicts = {
            "started": VerdictView(True, "proven"),
            "ready": VerdictView(may.action is Ready.READY, may.reason, may.evidence),
            "live": VerdictView(verdict.action.alive, verdict.reason, verdict.evidence),
            "degraded": VerdictView(well.action is degraded.Degraded.DEGRADED, well.reason, well.evidence),
        }

    def _admit(self, actor: Actor, engine: Engine, may: Decision[Ready], *, tell: bool) -> None:
        """Requests go to what is ready. A drain has its own way of that, and of one that is ended more is told."""
        unready = may.action is Ready.NOT_READY and may.reason != "draining"
        if unready == (engine.unready is not None):
            return
        said = may.reason.replace("_", " ")
        engine.unready = (
            Why(may.reason, f"{engine.name} {said}", HINT.format(name=engine.deployment)) if unready else None
        )
        actor.publish()
        actor.wake()
        if not tell:
            return
        code, text = (
            ("not_ready", f"gets no requests: it {said}") if unready else ("ready_again", "gets requests again")
        )
        self._c.journal.emit(
            "health",
            code,
            f"{engine.name} {text}",
            deployment=engine.deployment,
            evidence={"generation": engine.generation, "reason": may.reason, **may.evidence},
        )

    async def _end(self, actor: Actor, engine: Engine, watched: _Watched, verdict: Decision[Live]) -> None:
        code = CODES[verdict.action]
        text = f"{engine.name} {_words(verdict)}"
        author = self._c.automation.paused(engine.deployment)
        if author is not None:
            if self._c.automation.withhold(engine.deployment, code) is not None:
                said = f"{text}, and would be restarted; automation is paused by {author}"
                self._say(engine, "would_restart", said, verdict)
            return
        watched.over = True
        self._say(engine, code, text, verdict)
        words = "has stalled" if verdict.action is Live.STALLED else _words(verdict)
        failure = EngineFailed(code, f"{engine.name} {words}", hint=HINT.format(name=engine.deployment))
        await actor.fail_engines([engine.generation], failure)

    def _say(self, engine: Engine, code: str, text: str, verdict: Decision[Live]) -> None:
        self._c.journal.emit(
            "health",
            code,
            text,
            deployment=engine.deployment,
            evidence={"generation": engine.generation, **_flat(verdict)},
        )


def _flat(verdict: Decision[Live]) -> dict[str, object]:
    """The evidence with each sign's seconds beside their limit, as the journal has its numbers."""
    found = {k: v for k, v in verdict.evidence.items() if k != "signs"}
    for sign in _signs(verdict):
        found[f"{sign['sign']}_s"], found[f"{sign['sign']}_s_limit"] = sign["seconds"], sign["limit_s"]
    return found


def _signs(verdict: Decision[Live]) -> list[Mapping[str, object]]:
    signs = verdict.evidence.get("signs")
    return [s for s in signs if isinstance(s, Mapping)] if isinstance(signs, list) else []


def _words(verdict: Decision[Live]) -> str:
    if verdict.reason == "turns_all_away":
        return "turns every completion away for want of room, and has room"
    if verdict.action is Live.ERRORS:
        return "answers every completion with an error"
    if verdict.action is Live.REFUSES:
        return "refuses every connection, although its process is there"
    held = [s for s in _signs(verdict) if float(str(s["seconds"])) >= float(str(s["limit_s"]))]
    witnesses = ", ".join(
        f"{WITNESSES.get(str(s['sign']), s['sign'])} for {float(str(s['seconds'])):.1f} s" for s in held
    )
    return f"has stalled ({witnesses})"


def _asked(record: Record | None) -> Asked:
    """A record of the cache as the rules see it."""
    if record is None:
        return Asked()
    good = record.outcome is Outcome.OK or (record.outcome is None and record.asked_at is None)
    outstanding = record.asked_at is not None or not good
    return Asked(
        pending=record.first_asked if outstanding else None,
        ok_at=record.last_ok,
        refused=record.run if record.outcome is Outcome.REFUSED else 0,
        refused_since=record.run_since if record.outcome is Outcome.REFUSED else None,
        failed=record.run if record.outcome is Outcome.FAILED else 0,
        turned_away=record.turned_away,
        away_since=record.away_since,
    )
