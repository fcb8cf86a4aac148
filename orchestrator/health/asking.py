"""Asking engines: each probe is a task of its own, with a deadline, whose end is put into the cache.

Nobody waits for it: a look at the host's engines takes no longer because one of them does not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from orchestrator.clock import Clock
from orchestrator.engine import Engine
from orchestrator.engine_client import Answer, EngineClient, EngineUnreachable
from orchestrator.health.patience import measured
from orchestrator.health.results import Outcome, Probe, Result, Results
from orchestrator.measuring.speeds import numbers
from orchestrator.runtimes import adapter
from orchestrator.runtimes.base import Progress
from orchestrator.timing import Timing

OK = 200
OVERLOADED = frozenset({429, 503})
"""Answers of an engine that has too much to do: no sign that it is sick, and none of life."""


@dataclass(slots=True)
class Said:
    """An engine's own word of its work, when it last changed (monotonic; None: it never said any), and how many prompt
    tokens a second it has computed (None: it does not say, or has computed too few)."""

    progress: Progress | None = None
    moved_at: float | None = None
    prefill: float | None = None


class Asking:
    """The probes that are out."""

    def __init__(
        self, client: Callable[[Engine], EngineClient], results: Results, clock: Clock, timing: Timing
    ) -> None:
        self._client = client
        self._results = results
        self._clock = clock
        self._timing = timing
        self._out: dict[tuple[str, Probe], asyncio.Task[None]] = {}

    def progress(self, engine: Engine, said: Said) -> None:
        """Ask for its own word of its work, unless that question is out already."""
        runtime = adapter(engine.plan.runtime)

        async def ask(client: EngineClient) -> Result:
            answer = await client.get(runtime.probing.progress_path, timeout=self._timing.engine_call)
            now = self._clock.now()
            if answer.status == OK:
                found = await answer.read(runtime.parse_progress)
                if found.marks is not None and (said.progress is None or found.marks != said.progress.marks):
                    said.moved_at = now
                said.progress = found
            return self._result(answer)

        self._begin(engine, Probe.PROGRESS, ask)

    def rates(self, engine: Engine, said: Said) -> None:
        """Ask how fast it has read prompts."""
        runtime = adapter(engine.plan.runtime)

        async def ask(client: EngineClient) -> Result:
            answer = await client.get(runtime.metrics_path, timeout=self._timing.engine_call)
            if answer.status == OK:
                found = await answer.read(lambda body: numbers(body.decode("utf-8", "replace")))
                said.prefill = measured(runtime.prefilled(found)) or said.prefill
            return self._result(answer)

        self._begin(engine, Probe.RATES, ask)

    def canary(self, engine: Engine) -> None:
        """Ask for one token, on the way that clients take."""

        async def ask(client: EngineClient) -> Result:
            body = {
                "model": engine.plan.model,
                "messages": [{"role": "user", "content": "Hi"}],
                "max_tokens": 1,
                "temperature": 0,
                "stream": False,
            }
            return self._result(await client.post("/v1/chat/completions", body, timeout=self._timing.proof_call))

        self._begin(engine, Probe.CANARY, ask)

    def asked(self, engine: Engine, probe: Probe) -> bool:
        """Whether this question is out."""
        return (_container(engine), probe) in self._out

    async def close(self, container: str | None = None) -> None:
        """Take back what is out, of one container or of all."""
        tasks = [task for (name, _), task in self._out.items() if container in (None, name)]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _begin(self, engine: Engine, probe: Probe, ask: Callable[[EngineClient], Awaitable[Result]]) -> None:
        key = (_container(engine), probe)
        if key in self._out:
            return
        self._results.asked(*key, self._clock.now())
        task = asyncio.create_task(self._carry_out(engine, key, ask), name=f"{probe}-{engine.name}")
        self._out[key] = task
        task.add_done_callback(lambda _: self._out.pop(key, None))

    async def _carry_out(
        self, engine: Engine, key: tuple[str, Probe], ask: Callable[[EngineClient], Awaitable[Result]]
    ) -> None:
        try:
            async with self._client(engine) as client:
                result = await ask(client)
        except EngineUnreachable as error:
            # a daemon without file descriptors left cannot ask, and that is nothing against the engine
            outcome = Outcome.UNKNOWN if error.ours else Outcome.REFUSED if error.refused else Outcome.SILENT
            result = Result(outcome, self._clock.now(), error.detail)
        except OSError as error:  # of this daemon: no file descriptors left, say
            result = Result(Outcome.UNKNOWN, self._clock.now(), str(error))
        self._results.found(*key, result)

    def _result(self, answer: Answer) -> Result:
        now = self._clock.now()
        if answer.status == OK:
            return Result(Outcome.OK, now, status=answer.status)
        if answer.status in OVERLOADED:
            return Result(Outcome.UNKNOWN, now, answer.snippet, answer.status)
        return Result(Outcome.FAILED, now, answer.snippet, answer.status)


def _container(engine: Engine) -> str:
    return engine.container_id or engine.id
