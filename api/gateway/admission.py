"""Who may be sent where: the routing table in force, in-flight counts, and the drain handshake.

All of it is state of the event loop's thread; nothing here waits except `drain`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from bisect import bisect_left
from collections.abc import Collection, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from api.gateway.firsts import Firsts
from api.gateway.flights import Flight, gathered
from api.gateway.heads import Tags, request_prefix
from api.gateway.hold import WaitingRoom
from api.gateway.log import event, warning
from api.gateway.table import EngineRoute, ModelRoute, Table, TableRefused
from api.gateway.upstream import Pool

SICK_FOR = 1.0
"""Seconds for which an engine that failed is chosen only when no other admits."""
WARN_EVERY = 1.0
"""Seconds between two lines of the log about the same engine's failures."""
TTFB_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Seconds: upper bounds of the histogram of times to first byte."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may take. Seconds and bytes."""

    max_waiting: int = 256
    hold_s: float = 600.0
    held_stream_comment: float = 10.0
    max_body_bytes: int = 32 * 1024 * 1024
    max_held_bytes: int = 256 * 1024 * 1024
    """Of all request bodies that are held at the same time: arriving, waiting, or not answered yet."""
    read_s: float = 30.0
    """For a head, and for a body that comes more slowly than `least_rate`."""
    least_rate: float = 16 * 1024
    """Bytes a second of a body: what a client has to keep up after `read_s`."""
    unread_s: float = 300.0
    """For a client that takes nothing of an answer that waits for it."""
    keep_alive_s: float = 75.0
    """For an idle client connection: longer than clients' pools keep theirs."""
    settle_s: float = 1.0
    """How long a request whose only engine failed before the first byte waits for a new table."""
    orphaned_s: float = 15.0
    """The same while the daemon's table is not followed: after a reboot the gateway is there first, with a table of
    engines that are gone."""


class Bodies:
    """How many bytes of request bodies are held, all together."""

    __slots__ = ("held", "limit")

    def __init__(self, limit: int) -> None:
        self.held = 0
        self.limit = limit

    def take(self, size: int) -> bool:
        """Hold that many bytes more; False, and nothing is taken, when there is no room."""
        if self.held + size > self.limit:
            return False
        self.held += size
        return True

    def give(self, size: int) -> None:
        self.held -= size


class Running(Protocol):
    """A request between its arrival and its end."""

    def cut_off(self) -> None:
        """The gateway ends now: say so to the client."""

    def flight(self) -> Flight | None:
        """What it waits for at which engine; None while it is at none."""


class Engine:
    """One engine as the gateway sees it. Counters grow for as long as the object lives."""

    __slots__ = (
        "admitting",
        "bytes",
        "errors",
        "events",
        "firsts",
        "host",
        "id",
        "idle_waiters",
        "in_flight",
        "last_byte",
        "last_data",
        "listed",
        "pool",
        "prefix",
        "prompt_bytes",
        "requests",
        "route",
        "sick_until",
        "tags",
        "ttfb",
        "unsaid",
        "warned",
    )

    def __init__(self, route: EngineRoute, host: str) -> None:
        self.id = route.engine
        self.in_flight = 0
        self.requests = 0
        self.bytes = 0
        self.events = 0
        self.errors = 0
        self.prompt_bytes = 0
        """Of the bodies of all requests that it began to answer."""
        self.last_byte: float | None = None
        self.last_data: float | None = None
        """When it last gave something that was neither an error nor a comment."""
        self.ttfb: float | None = None
        self.firsts = Firsts()
        self.sick_until = 0.0
        self.warned = -WARN_EVERY
        self.unsaid = 0
        self.admitting = False
        self.listed = True
        self.idle_waiters: list[asyncio.Future[None]] = []
        self.pool = Pool(path=route.socket, port=route.port)
        self.update(route, host)

    def update(self, route: EngineRoute, host: str) -> None:
        """Take a new table's word for where the engine is."""
        old = getattr(self, "route", route)
        if (old.socket, old.port) != (route.socket, route.port):
            self.pool.close()
            self.pool = Pool(path=route.socket, port=route.port)
        self.route = route
        self.host = host
        self.prefix = request_prefix(route.key)
        self.tags = Tags.of(host, route.engine, route.generation, route.plan, route.method)

    def failed(self, model: str, detail: str, *, before_first_byte: bool) -> None:
        """It lost a request. Logged once in `WARN_EVERY` seconds: a dead engine may fail thousands of them."""
        self.errors += 1
        now = time.monotonic()
        self.sick_until = now + SICK_FOR
        if now - self.warned < WARN_EVERY:
            self.unsaid += 1
            return
        fields = {"detail": detail, "before_first_byte": before_first_byte, "unsaid_before": self.unsaid}
        warning("engine_failed", engine=self.id, model=model, **fields)
        self.warned = now
        self.unsaid = 0

    def stats(self, now: float) -> dict[str, object]:
        return {
            "in_flight": self.in_flight,
            "bytes": self.bytes,
            "events": self.events,
            "requests": self.requests,
            "prompt_bytes": self.prompt_bytes,
            "errors": self.errors,
            "last_byte_s_ago": None if self.last_byte is None else round(now - self.last_byte, 3),
            "last_data_s_ago": None if self.last_data is None else round(now - self.last_data, 3),
            "ttfb_s": self.ttfb,
            "firsts": self.firsts.document(),
        }


class Model:
    """One model's requests. arrivals = waiting + in_flight + completed + failed + rejected + cancelled."""

    __slots__ = (
        "admitting",
        "arrivals",
        "asked_again",
        "broken_off",
        "cancelled",
        "completed",
        "failed",
        "first_seen",
        "in_flight",
        "name",
        "rejected",
        "room",
        "route",
        "ttfb_counts",
        "ttfb_sum",
    )

    def __init__(self, route: ModelRoute, room: WaitingRoom, first_seen: float) -> None:
        self.name = route.name
        self.route: ModelRoute | None = route
        """None when no table in force names the model."""
        self.room = room
        self.first_seen = first_seen
        self.admitting: list[Engine] = []
        self.arrivals = 0
        self.in_flight = 0
        self.completed = 0
        self.failed = 0
        self.rejected = 0
        self.cancelled = 0
        self.broken_off = 0
        """Of those that failed: their engine was lost in the middle of the answer."""
        self.asked_again = 0
        """Lost by their engine before the first byte, and put to another or kept for the next; they are none of those
        that failed, unless that fails too."""
        self.ttfb_counts = [0] * (len(TTFB_BUCKETS) + 1)
        self.ttfb_sum = 0.0

    def first_byte_after(self, seconds: float) -> None:
        self.ttfb_counts[bisect_left(TTFB_BUCKETS, seconds)] += 1
        self.ttfb_sum += seconds

    def stats(self) -> dict[str, int]:
        return {
            "arrivals": self.arrivals,
            "waiting": len(self.room),
            "in_flight": self.in_flight,
            "completed": self.completed,
            "failed": self.failed,
            "rejected": self.rejected,
            "cancelled": self.cancelled,
            "broken_off": self.broken_off,
            "asked_again": self.asked_again,
        }


class Admission:
    """The routing state of one gateway."""

    def __init__(self, limits: Limits, *, wall: float) -> None:
        """`wall`: Unix time of the start, what `created` of models first seen now says."""
        self.limits = limits
        self.gateway_id = secrets.token_hex(8)
        self.started = time.monotonic()
        self.wall = wall
        self.stopping = False
        self.orphaned = False
        """Whether the daemon, whose table it is, is not there. The link says so."""
        self.date = b""
        """The Date header's line of this second."""
        self.table: Table | None = None
        self.source: str | None = None
        self.bodies = Bodies(limits.max_held_bytes)
        self.running: set[Running] = set()
        self.called = asyncio.Event()
        """Set when a request begins to wait for a model of which nothing is there: the daemon is to hear it at once."""
        self.index: dict[str, Model] = {}
        self._models: dict[str, Model] = {}
        self._engines: dict[str, Engine] = {}
        self._drained: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # routing

    def pick(self, model: Model, tried: Collection[str] = ()) -> Engine | None:
        """The admitting engine with the least in flight, sick ones last; None when there is none."""
        admitting = model.admitting
        if len(admitting) == 1:
            only = admitting[0]
            return None if only.id in tried else only
        now = time.monotonic()
        return min(
            (engine for engine in admitting if engine.id not in tried),
            key=lambda engine: (engine.sick_until > now, engine.in_flight, engine.requests),
            default=None,
        )

    def leave(self, engine: Engine) -> None:
        """One request fewer is in flight at `engine`."""
        engine.in_flight -= 1
        if engine.in_flight or engine.admitting:
            return
        engine.pool.close()
        for waiter in engine.idle_waiters:
            if not waiter.done():
                waiter.set_result(None)
        engine.idle_waiters.clear()
        if not engine.listed:
            self._engines.pop(engine.id, None)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task that somebody holds on to."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logging.getLogger(__name__).error("a task failed", exc_info=error)

    # the table

    def apply(self, table: Table, source: str, *, fresh: bool) -> None:
        """Route by `table` from now on. `fresh`: it is the first of a connection to the daemon.

        A daemon that was restarted may count its revisions anew, so the first table of
        a connection is always taken; after it, an older one is refused (`TableRefused`).
        """
        if not fresh and self.table is not None and table.revision < self.table.revision:
            raise TableRefused(f"revision {table.revision} is older than {self.table.revision}, which is in force")
        for engine, revision in list(self._drained.items()):
            if table.revision > revision or (fresh and table.revision < revision):
                del self._drained[engine]
        self.table = table
        self.source = source
        named: set[str] = set()
        for route in table.models:
            self._apply_model(route, table.host)
            named.update(engine.engine for engine in route.engines)
        self._forget(named, {route.name for route in table.models})
        self._index(table)
        for model in list(self._models.values()):
            model.room.recheck()
        self._forget_models()

    def _apply_model(self, route: ModelRoute, host: str) -> None:
        model = self._models.get(route.name)
        if model is None:
            room = WaitingRoom(self.limits.max_waiting)
            model = self._models[route.name] = Model(route, room, self.wall + time.monotonic() - self.started)
        model.route = route
        for item in route.engines:
            engine = self._engines.get(item.engine)
            if engine is None:
                self._engines[item.engine] = Engine(item, host)
            else:
                engine.listed = True
                if engine.route != item or engine.host != host:
                    engine.update(item, host)
        self._admit(model)

    def _admit(self, model: Model) -> None:
        """Work out anew which engines of the model take requests."""
        model.admitting = []
        if model.route is None:
            return
        for item in model.route.engines:
            engine = self._engines[item.engine]
            engine.admitting = item.admit and item.engine not in self._drained
            if engine.admitting:
                model.admitting.append(engine)
            else:
                engine.pool.close()

    def _forget(self, engines: set[str], models: set[str]) -> None:
        """Take what the table no longer names out of routing; what is in flight goes on."""
        for engine in list(self._engines.values()):
            if engine.id not in engines:
                engine.listed = engine.admitting = False
                engine.pool.close()
                if not engine.in_flight:
                    del self._engines[engine.id]
        for model in self._models.values():
            if model.name not in models:
                model.route = None
                model.admitting = []

    def _forget_models(self) -> None:
        """Models that no table names go as soon as nothing of them is left; one that comes back counts anew."""
        for model in list(self._models.values()):
            if model.route is None and not model.in_flight and not len(model.room):
                del self._models[model.name]

    def _index(self, table: Table) -> None:
        self.index = {route.name: self._models[route.name] for route in table.models}
        for route in table.models:
            for alias in route.aliases:
                self.index.setdefault(alias, self._models[route.name])

    # draining and stopping

    async def drain(self, engine_id: str, timeout_s: float, revision: int | None = None) -> int:
        """Send nothing more to an engine; its in-flight count when that is 0, or after `timeout_s` seconds.

        It stays so until a table with a higher revision than the one in force now (or
        than `revision`, the daemon's own) says otherwise. An engine never heard of has
        nothing in flight.
        """
        known = -1 if self.table is None else self.table.revision
        self._drained[engine_id] = max(known, known if revision is None else revision)
        for model in self._models.values():
            self._admit(model)
        engine = self._engines.get(engine_id)
        if engine is None or not engine.in_flight:
            return 0
        event("drain_started", engine=engine_id, in_flight=engine.in_flight)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        engine.idle_waiters.append(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError:
            event("drain_timeout", engine=engine_id, in_flight=engine.in_flight)
        finally:
            if waiter in engine.idle_waiters:
                engine.idle_waiters.remove(waiter)
        return engine.in_flight

    def stop(self) -> None:
        """Admit nobody more and turn the waiting away."""
        self.stopping = True
        for model in self._models.values():
            model.room.close()

    def cut_off(self) -> None:
        """End what still runs, in words that its client understands."""
        for request in list(self.running):
            request.cut_off()

    def close(self) -> None:
        """Drop idle connections and unfinished dials."""
        for engine in self._engines.values():
            engine.pool.close()
        for task in list(self._tasks):
            task.cancel()

    # what is to be seen

    def models(self) -> list[Model]:
        """The models of the table in force, in its order."""
        return [] if self.table is None else [self._models[route.name] for route in self.table.models]

    def engines(self) -> Iterator[Engine]:
        """Engines of the table in force, and those that still work on something."""
        return iter(self._engines.values())

    def report(self) -> dict[str, object]:
        """What the daemon is told: cumulative since the gateway's start (`gateway_id` names it)."""
        now = time.monotonic()
        flights = gathered((f for f in (request.flight() for request in self.running) if f is not None), now)
        return {
            "gateway_id": self.gateway_id,
            "uptime_s": round(now - self.started, 3),
            "models": {
                model.name: model.stats()
                for model in self._models.values()
                if model.route is not None or model.in_flight
            },
            "engines": {
                engine.id: {**engine.stats(now), "flights": flights.get(engine.id)} for engine in self._engines.values()
            },
        }
