"""Looking at engines that serve, and keeping what they show.

Looks at a time of its own, changes nothing of a deployment, and is never in the way: an engine that does not
answer, a log that cannot be read or a database in trouble costs a measurement.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from containers.errors import ContainerError
from containers.podman import Podman
from hosts.facts import HostFacts
from orchestrator.clock import Clock
from orchestrator.deployment import Deployment
from orchestrator.engine import Engine
from orchestrator.engine_client import EngineClient, EngineUnreachable
from orchestrator.health.pace import Pace
from orchestrator.measured import NOTHING, Measured, Ran
from orchestrator.measuring import learned, printed, speeds
from orchestrator.measuring import ran as headings
from orchestrator.measuring.learned import Decoding, First, Start
from orchestrator.measuring.ledger import Ledger, StartRow
from orchestrator.measuring.pacing import Pacing
from orchestrator.runtimes import EngineCounters, RuntimeAdapter, adapter
from orchestrator.telemetry import EngineReading, TelemetryView
from orchestrator.timing import Timing
from orchestrator.views import MeasuredView, State

SERVING = frozenset({State.READY, State.DRAINING})
PLENTY = 65_536
"""Tokens; an engine that can hold more has shown enough by then."""
WORTH_A_NOTE = 1.01
"""A peak is written down when it has grown by a hundredth."""


class Readings(Protocol):
    """Where readings of the host come from (`orchestrator.host_watch`)."""

    def facts(self) -> HostFacts: ...
    def telemetry(self, since: int = 0, limit: int | None = None) -> Sequence[TelemetryView]: ...


@dataclass(slots=True)
class _Watched:
    """An engine that is looked at."""

    engine: Engine
    ran: Ran
    driver: str | None
    worked: bool = False
    noted: int | None = None
    """The peak in the ledger."""
    speed: speeds.Window = field(default_factory=speeds.Window)
    pacing: Pacing = field(default_factory=Pacing)


class Observing:
    """The observer of one host. `known` is what has been learned; it changes as more is."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        host: Readings,
        podman: Podman,
        clock: Clock,
        timing: Timing,
        client: Callable[[Engine], EngineClient],
        traffic: Callable[[str], tuple[float, Mapping[str, object]] | None] = lambda _: None,
    ) -> None:
        """`traffic` is what the gateway last said of an engine, and when."""
        self._ledger = ledger
        self._host = host
        self._podman = podman
        self._clock = clock
        self._timing = timing
        self._client = client
        self._traffic = traffic
        self._watched: dict[str, _Watched] = {}
        self.known: Measured = NOTHING

    async def read(self) -> None:
        """Take up what was learned before."""
        starts = [row.start for row in await self._ledger.starts()]
        drivers = headings.drivers(self._host.facts())
        refutations = await self._ledger.refutations()
        decodings, firsts = await self._ledger.decodings(), await self._ledger.firsts()
        self.known = learned.measured(starts, decodings, drivers, refutations, firsts)

    async def look(self, deployments: Iterable[Deployment]) -> None:
        """One look at every engine."""
        changed = False
        present: set[str] = set()
        latest = self._host.telemetry(limit=1)
        readings = {r.id: r for view in latest for r in view.engines}
        for deployment in deployments:
            for engine in deployment.engines:
                present.add(engine.id)
                serves = engine.state in SERVING and engine is deployment.serving_engine
                if serves and engine.id not in self._watched and not _ended_badly(engine):
                    changed = await self._meet(engine, readings.get(engine.id)) or changed
        for watched in list(self._watched.values()):
            if _ended_badly(watched.engine):
                await self._ledger.void(watched.engine.id)
                changed = True
            if watched.engine.id not in present or _ended_badly(watched.engine):
                del self._watched[watched.engine.id]
        changed = await self._peaks(readings) or changed
        changed = any(await asyncio.gather(*(self._speed(w) for w in self._watched.values()))) or changed
        for watched in self._watched.values():
            watched.pacing.judge(watched.ran, self.known)  # before what it shows now becomes part of what is usual
        for watched in self._watched.values():
            changed = await self._firsts(watched) or changed
        if changed:
            await self.read()

    def paces(self) -> Mapping[str, Pace]:
        """How fast each engine is, beside what is usual, by its id."""
        return {name: watched.pacing.now for name, watched in self._watched.items()}

    # a start

    async def _meet(self, engine: Engine, reading: EngineReading | None) -> bool:
        """An engine that is new here: one that was just started, or one that a former daemon started."""
        if reading is None:
            return False  # the next reading has it
        facts, plan = self._host.facts(), engine.plan
        watched = _Watched(engine, headings.of(plan, facts), headings.driver(plan, facts))
        self._watched[engine.id] = watched
        engine.printed = await self._printed(engine)
        engine.observed = watched.noted = self._took(watched, reading)
        start = Start(
            ran=watched.ran,
            driver=watched.driver,
            day=self._clock.today().isoformat(),
            load_s=engine.load_s,
            likely=plan.expected_memory.likely - plan.expected_memory.correction,
            peak=watched.noted,
            worked=False,
            image=plan.image,
        )
        await self._ledger.started(
            StartRow(engine.id, start, plan.image, plan.context, plan.parallel, self._clock.wall(), engine.printed)
        )
        return True

    async def _printed(self, engine: Engine) -> Mapping[str, int]:
        """The sizes in the beginning of an engine's log."""
        lines: list[str] = []
        with suppress(ContainerError, TimeoutError):
            async with asyncio.timeout(self._timing.podman_call):
                async for line in self._podman.logs(engine.container_id or "", tail=None, follow=False):
                    lines.append(line.text[: printed.WIDEST])
                    if len(lines) >= printed.LINES:
                        break
        return await asyncio.to_thread(printed.sizes, engine.plan.runtime, lines)

    # memory

    def _took(self, watched: _Watched, reading: EngineReading) -> int | None:
        """Bytes in use: on the device that holds most of it; on a CPU what its processes had resident at most.

        On unified memory what the process itself has is in the same pool.
        """
        plan = watched.engine.plan
        if not plan.devices:
            return reading.peak if reading.peak is not None else reading.memory
        held = max(reading.gpu_memory.values(), default=0)
        if not held:
            return None
        unified = any(a.unified for a in headings.gpus(plan, self._host.facts()))
        return held + (reading.rss or 0) if unified else held

    async def _peaks(self, readings: Mapping[str, EngineReading]) -> bool:
        changed = False
        for watched in self._watched.values():
            reading = readings.get(watched.engine.id)
            now = None if reading is None else self._took(watched, reading)
            if now is None:
                continue
            watched.engine.observed = max(now, watched.engine.observed or 0)
            if watched.noted is None or watched.engine.observed > watched.noted * WORTH_A_NOTE:
                watched.noted = watched.engine.observed
                await self._ledger.peaked(watched.engine.id, watched.noted)
                changed = True
        return changed

    # work

    async def _speed(self, watched: _Watched) -> bool:
        """Whether a stretch with one request alone has just ended, or its caches have been filled."""
        engine = watched.engine
        if engine.state not in SERVING:
            return False
        runtime = adapter(engine.plan.runtime)
        try:
            async with self._client(engine) as client:
                answer = await client.get(runtime.metrics_path, timeout=self._timing.engine_call)
        except (EngineUnreachable, OSError):
            watched.speed = speeds.Window()
            return False
        if answer.status != 200:
            return False
        counters, found = await asyncio.to_thread(_said, runtime, answer.body)  # megabytes, should it want so
        done = watched.speed.read(engine.plan.runtime, found, counters, self._clock.now())
        worked = not watched.worked and (counters.prompt or 0) + (counters.generated or 0) >= _plenty(engine)
        if worked:
            watched.worked = True
            await self._ledger.worked(engine.id)
        if done is None:
            return worked
        tokens, seconds = done
        watched.pacing.decoded(tokens, seconds)
        if watched.pacing.slow:
            return worked
        day = self._clock.today().isoformat()
        await self._ledger.decoded(Decoding(watched.ran, watched.driver, day, tokens, seconds), self._clock.wall())
        return True

    async def _firsts(self, watched: _Watched) -> bool:
        """Whether times to the first token were written down."""
        told = self._traffic(watched.engine.id)
        row = None if told is None else watched.pacing.streams(told[1].get("firsts"))
        if row is None or watched.pacing.slow:
            return False
        first = First(watched.ran, watched.driver, self._clock.today().isoformat(), *row)
        await self._ledger.first(first, self._clock.wall())
        return True

    # what is shown, and forgotten

    async def views(self) -> Sequence[MeasuredView]:
        """All that was learned, by combination."""
        starts, decodings = await self._ledger.starts(), await self._ledger.decodings()
        drivers = headings.drivers(self._host.facts())
        return views(starts, decodings, learned.measured([row.start for row in starts], decodings, drivers), drivers)

    async def forget(self, model: str | None) -> int:
        """Forget what was learned of a model, or everything; how many combinations that were.

        Engines that serve are observed anew when they are started again.
        """
        count = await self._ledger.forget(model)
        await self.read()
        return count

    async def compact(self) -> None:
        """Keep what is remembered bounded."""
        await self._ledger.compact()


def _said(runtime: RuntimeAdapter, body: bytes) -> tuple[EngineCounters, Mapping[str, float]]:
    """An engine's counters, as the adapter and as `speeds` read them."""
    text = body.decode("utf-8", "replace")
    return runtime.parse_metrics(text), speeds.numbers(text)


def _plenty(engine: Engine) -> int:
    """Tokens after which an engine's caches have been filled, or as good as."""
    return min(engine.plan.context * engine.plan.parallel, PLENTY)


def _ended_badly(engine: Engine) -> bool:
    """Whether it failed, or somebody ended it: what it took by then is no measure."""
    return engine.failed or engine.verdict is not None


def views(
    starts: Sequence[StartRow], decodings: Sequence[Decoding], known: Measured, drivers: frozenset[str | None]
) -> tuple[MeasuredView, ...]:
    """One view a combination, by name."""
    days: dict[Ran, list[tuple[str | None, str]]] = {}
    for start in (row.start for row in starts):
        days.setdefault(start.ran, []).append((start.driver, start.day))
    for decoding in decodings:
        days.setdefault(decoding.ran, []).append((decoding.driver, decoding.day))
    found = []
    for ran, seen in days.items():
        memory, speed = known.memory.get(ran), known.speed.get(ran)
        others = {driver for driver, _ in seen if driver is not None and driver not in drivers}
        found.append(
            MeasuredView(
                model=ran.model,
                variant=ran.variant,
                runtime=ran.runtime,
                version=ran.version,
                arch=ran.arch,
                method=ran.method.value,
                drafter=ran.drafter,
                starts=sum(1 for row in starts if row.start.ran == ran and row.start.driver in drivers),
                memory=None if memory is None else memory.bytes,
                load_s=known.load_s.get(ran),
                tokens_s=None if speed is None else speed.tokens_s,
                seen=max((day for driver, day in seen if driver in drivers), default=None),
                other_drivers=tuple(sorted(others)),
            )
        )
    return tuple(sorted(found, key=lambda v: (v.model, v.variant, v.runtime, v.version or "", v.method)))
