"""The gateway of a history, and who talks to it. It outlives daemons, as a process of its own does.

Made up in what it does with bytes (nothing), real in its rules: it routes by the newest table, holds requests for what
is coming, admits nothing more to what is drained until a newer table says so, and says how every request ended.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.clock import Clock
from orchestrator.gateway_link import Drained, GatewayLink
from orchestrator.routing import Route, RoutingTable
from orchestrator.timing import Timing
from tests.history.machine import Machine, Process
from tests.history.virtual_time import OWNER

HOLD = 300.0
"""Seconds that a request waits for an engine at most."""
LAG = 0.002
"""Seconds after which the gateway has a new table."""
AGAIN = 2.0
"""Seconds after which an answer of an engine that hangs is looked for again."""


@dataclass(eq=False)
class Request:
    """`ended` is None while it goes on; then served, or why not."""

    model: str
    seconds: float
    came: float
    engine: str | None = None
    ended: str | None = None
    why: str | None = None
    limit: asyncio.TimerHandle | None = None


class Front:
    """`broken` is told of requests whose engine Outrider ended under them."""

    def __init__(self, machine: Machine) -> None:
        self._machine, self._loop = machine, machine.loop
        self.routes: Mapping[str, Route] = {}
        self.revision = -1
        self.in_flight: dict[str, list[Request]] = defaultdict(list)
        self.rooms: dict[str, list[Request]] = defaultdict(list)
        self.counts: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(("arrivals", "served", "not"), 0))
        self.drains: dict[str, tuple[float, float]] = {}
        """Engines, with when their drain began and how long it may take; none that are admitted to again."""
        self._drained: dict[str, int] = {}
        self.last_end: dict[str, float] = {}
        """By model, when its last request ended."""
        self._reader: asyncio.Task[None] | None = None
        self.called: Callable[[], None] = lambda: None
        """Told at once that a request begins to wait."""
        self.broken: Callable[[Process, list[Request]], None] = lambda *_: None

    # the table

    def connect(self, routing: RoutingTable) -> None:
        """To another daemon."""
        self.disconnect()
        owner = OWNER.set(0)
        self._reader = asyncio.ensure_future(self._read(routing))
        OWNER.reset(owner)

    def disconnect(self) -> None:
        if self._reader is not None:
            self._reader.cancel()

    async def _read(self, routing: RoutingTable) -> None:
        fresh = True
        await routing._open.wait()
        while True:
            news = routing._news
            self._apply(dict(routing._routes), routing.revision, fresh=fresh)
            fresh = False
            await news.wait()
            await asyncio.sleep(LAG)

    def _apply(self, routes: Mapping[str, Route], revision: int, *, fresh: bool) -> None:
        for engine, drained in list(self._drained.items()):
            if revision > drained or (fresh and revision < drained):
                del self._drained[engine]
        self.routes, self.revision = routes, revision
        for route in routes.values():
            for listed in route.engines:
                if listed.admit and listed.engine not in self._drained:
                    self.drains.pop(listed.engine, None)
        for model in list(self.rooms):
            waiting, self.rooms[model] = self.rooms[model], []
            for request in waiting:
                self._route(request)

    # requests

    def arrive(self, model: str, seconds: float) -> Request:
        """Somebody asks, and the answer takes so long."""
        request = Request(model, seconds, self._machine.now)
        self.counts[model]["arrivals"] += 1
        self._route(request)
        if request.ended is None and request.engine is None:
            self.called()
        return request

    def _route(self, request: Request) -> None:
        route = self.routes.get(request.model)
        admitting = [] if route is None else [e for e in route.engines if e.admit and e.engine not in self._drained]
        if admitting:
            self._begin(request, admitting[0].engine)
        elif route is not None and route.hold:
            self.rooms[request.model].append(request)
            if request.limit is None:
                request.limit = self._loop.call_later(HOLD, self._expire, request)
        else:
            why = None if route is None else route.reason
            state = "unknown" if route is None else route.state.value
            self._end(request, "refused", state if why is None else why.code)

    def _begin(self, request: Request, engine: str) -> None:
        process = self._process(engine)
        if process is None:
            self._end(request, "failed", "it is gone, and the next table says so")
            return
        request.engine = engine
        self.in_flight[engine].append(request)
        self._loop.call_later(request.seconds, self._finish, request)

    def _process(self, engine: str) -> Process | None:
        return next((p for p in self._machine.processes if p.engine == engine and p.alive), None)

    def _finish(self, request: Request) -> None:
        if request.ended is not None:
            return
        process = self._process(request.engine or "")
        if process is not None and (process.stuck or process.hung):
            self._loop.call_later(AGAIN, self._finish, request)
            return
        self._end(request, "served", None)

    def _expire(self, request: Request) -> None:
        if request.ended is None and request.engine is None:
            self.rooms[request.model].remove(request)
            self._end(request, "expired", "the time for waiting is up")

    def _end(self, request: Request, how: str, why: str | None) -> None:
        request.ended, request.why = how, why
        self.last_end[request.model] = self._machine.now
        if request.limit is not None:
            request.limit.cancel()
        self.counts[request.model]["served" if how == "served" else "not"] += 1
        if request.engine is not None:
            self.in_flight[request.engine].remove(request)

    def process_ended(self, process: Process, fault: bool) -> None:
        """What it was answering is cut; if that was no fault, somebody has to answer for it."""
        cut = list(self.in_flight.get(process.engine, ()))
        if cut and not fault:
            self.broken(process, cut)
        for request in cut:
            self._end(request, "cut", "the engine ended")

    # what daemons ask

    async def drain(self, engine: str, limit: float, revision: int) -> Drained:
        self._drained[engine] = max(self.revision, revision)
        begun = self._machine.now
        self.drains[engine] = begun, limit
        while left := len(self.in_flight.get(engine, ())):
            if self._machine.now >= begun + limit:
                return Drained(False, left, "drain_timed_out")
            await asyncio.sleep(min(0.25, max(0.001, begun + limit - self._machine.now)))
        return Drained(True, 0, "drained")

    def report(self) -> dict[str, Any]:
        """What a gateway reports to its daemon."""
        models = {
            name: {
                "arrivals": count["arrivals"],
                "completed": count["served"],
                "failed": count["not"],
                "waiting": len(self.rooms[name]),
                "in_flight": count["arrivals"] - count["served"] - count["not"] - len(self.rooms[name]),
            }
            for name, count in self.counts.items()
        }
        engines = {engine: {"in_flight": len(requests)} for engine, requests in self.in_flight.items() if requests}
        return {"gateway_id": "g", "uptime_s": self._machine.now, "models": models, "engines": engines}


class Link(GatewayLink):
    """A daemon's side: the real one, but for the way of a drain."""

    def __init__(self, front: Front, clock: Clock, timing: Timing, there: Callable[[], bool]) -> None:
        nowhere: Any = None
        super().__init__(nowhere, clock, timing)
        self._front, self._there = front, there

    async def drain(self, engine: str, limit: float, revision: int) -> Drained:
        if not self._there():
            await asyncio.Event().wait()
        await asyncio.sleep(LAG)
        return await self._front.drain(engine, limit, revision)
