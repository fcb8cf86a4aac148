"""Waiting for an engine to be started: until it says so, names our model, and would answer.

Its health path is a hint. One that says 200 while it still loads is found out by a request for one token, which it
then answers as it answers its health path while it loads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from containers.spec import LogLine
from hosts.roots import Roots
from hosts.work import work_of
from orchestrator.clock import Clock
from orchestrator.decision import Decision
from orchestrator.engine import Engine
from orchestrator.engine_client import EngineClient, EngineUnreachable, SocketReplaced
from orchestrator.errors import EngineFailed
from orchestrator.health import loading
from orchestrator.health.loading import Load, Marks
from orchestrator.runtimes.base import RuntimeAdapter
from orchestrator.timing import Timing

HTTP_OK = 200
LINES = 20
"""Of the log's end: lines that repeat, such as a bar of progress, still move among others."""


async def no_marks() -> Marks:
    """Nothing can be seen of the load."""
    return Marks()


@dataclass(slots=True)
class Start:
    """One start. `limit` is the budget in seconds, `seen` is told what the engine says, `extended` that the budget was
    lengthened (once). `cut_off` (a few file reads) is asked where it does not even come to a connection: the failure
    that it gives is raised once it has held for `timing.cut_off` seconds. `marks` looks for signs of progress."""

    client: EngineClient
    adapter: RuntimeAdapter
    timing: Timing
    clock: Clock
    limit: float
    seen: Callable[[str], None]
    model: str | None = None
    """Our name for the model; None: it is not asked whether it has it."""
    cut_off: Callable[[], EngineFailed | None] = lambda: None
    marks: Callable[[], Awaitable[Marks]] = no_marks
    extended: Callable[[Decision[Load]], None] = lambda _: None
    _last: Marks = field(default_factory=Marks)
    _looked: float = float("-inf")
    _moved_at: float = 0.0
    _moved: str | None = None
    _told: bool = False

    async def wait(self) -> None:
        """Poll until it has started; raises `EngineFailed` `load_timed_out`. The caller watches for its exit."""
        began = self._moved_at = self.clock.now()
        pause = self.timing.engine_poll
        since: float | None = None
        while True:
            try:
                if await self._started():
                    return
                since = None
            except SocketReplaced:
                raise
            except EngineUnreachable as error:
                failure = None if error.connected else await asyncio.to_thread(self.cut_off)
                since = None if failure is None else (since or self.clock.now())
                if failure is not None and since is not None and self.clock.now() - since >= self.timing.cut_off:
                    raise failure from None
                self.seen("does not answer in time" if error.connected else "not listening yet")
            await self._judge(began)
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, self.timing.engine_poll_max)

    async def _started(self) -> bool:
        health = await self.client.get(self.adapter.health_path, timeout=self.timing.engine_call)
        loads = self.adapter.loading_statuses
        if health.status != HTTP_OK:
            self.seen("loading the model" if health.status in loads else f"answers {health.status}")
            return False
        if self.model is None:
            return True
        known = await self.client.get(self.adapter.probing.models_path, timeout=self.timing.engine_call)
        if known.status == HTTP_OK and self.model not in _names(known.json()):
            self.seen("says it is well, and has another model")
            return False
        body = {"model": self.model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
        answer = await self.client.post("/v1/chat/completions", body, timeout=self.timing.proof_call)
        if answer.status in loads:
            self.seen("says it is well, and still loads the model")
            return False
        return True

    async def _judge(self, began: float) -> None:
        now = self.clock.now()
        if now - self._looked >= self.timing.engine_poll_max:
            self._looked = now
            found = await self.marks()
            moved = found.beyond(self._last)
            if moved is not None:
                self._moved_at, self._moved = now, moved
            if moved is not None or self._last.resident is None:
                self._last = found  # growth counts from when it was last seen, however slowly it comes
        decision = loading.decide(
            elapsed=now - began,
            budget=self.limit,
            quiet=now - self._moved_at,
            stall=self.timing.stall,
            moved=self._moved,
        )
        if decision.action is Load.EXTENDED and not self._told:
            self._told = True
            self.extended(decision)
        if decision.action is Load.TIMED_OUT:
            raise EngineFailed(
                "load_timed_out",
                f"not loaded after {now - began:.0f} s",
                hint="`outrider logs MODEL` shows how far it came; raise `load_s` of the model if it only needs longer",
                evidence={"reason": decision.reason, **decision.evidence},
            )


async def marks_of(engine: Engine, tail: Callable[[Engine, int], Awaitable[Sequence[LogLine]]], roots: Roots) -> Marks:
    """What can be seen of an engine's load: the end of its log, its memory, what it read from disks."""
    lines = await tail(engine, LINES)
    work = None
    if engine.pid is not None and engine.container_id is not None:
        work = await asyncio.to_thread(work_of, roots, engine.container_id, engine.pid)
    text = "\n".join(line.text for line in lines)
    return Marks(text or None, None if work is None else work.resident, None if work is None else work.read_bytes)


def _names(answer: object) -> list[object]:
    """The names of an answer of /v1/models."""
    match answer:
        case {"data": [*models]}:
            return [m.get("id") for m in models if isinstance(m, dict)]
        case _:
            return []
