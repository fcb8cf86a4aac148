"""Engines whose answers never end, are too large or too deep: nobody waits for them, and nothing breaks."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hosts.roots import Roots
from orchestrator.canary.watching import CanaryWatch
from orchestrator.clock import SystemClock
from orchestrator.deployment import Deployment
from orchestrator.engine import Engine, new_id
from orchestrator.engine_client import LARGEST_ANSWER, Answer, EngineClient, EngineUnreachable
from orchestrator.errors import EngineFailed
from orchestrator.health.asking import Asking, Said
from orchestrator.health.results import Results
from orchestrator.health.starting import Start
from orchestrator.health.watching import HealthWatch
from orchestrator.proof import counters
from orchestrator.runtimes import adapter
from orchestrator.timing import Timing
from orchestrator.views import State
from tests.canary.asked import a_plan
from tests.daemon.world import an_entry

LIMIT = 0.2
HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


@contextlib.asynccontextmanager
async def dripping(path: Path, first: bytes, drip: bytes) -> AsyncIterator[None]:
    """A server that says `first` at once, and then `drip` again and again, each well before anybody's patience ends."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(first)
            while not over.is_set():
                writer.write(drip)
                await writer.drain()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(over.wait(), LIMIT / 10)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    over, served = asyncio.Event(), set[asyncio.Task[None]]()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.add(asyncio.create_task(serve(reader, writer)))

    server = await asyncio.start_unix_server(accept, path)
    try:
        yield
    finally:
        server.close()
        over.set()
        await asyncio.gather(*served)


@pytest.mark.parametrize(("first", "drip"), [(HEAD, b"1\r\n \r\n"), (b"HTTP/1.1 200 OK\r\nx: ", b"y")])
async def test_an_answer_that_never_ends_has_an_end(tmp_path: Path, first: bytes, drip: bytes) -> None:
    """Each byte comes in time, and all of them never do: the deadline is one of the whole answer."""
    async with (
        dripping(tmp_path / "e.sock", first, drip),
        EngineClient(socket=str(tmp_path / "e.sock"), port=None, key="k", timeout=LIMIT) as client,
        asyncio.timeout(5),
    ):
        for timeout in (None, LIMIT):
            with pytest.raises(EngineUnreachable) as failed:
                await client.get("/health", timeout=timeout)
            assert (failed.value.busy, failed.value.connected) == (True, True)


async def test_a_load_whose_health_path_streams_for_ever_is_given_up(tmp_path: Path) -> None:
    timing = replace(Timing(), engine_call=LIMIT, engine_poll=0.01, stall=LIMIT)
    async with (
        dripping(tmp_path / "e.sock", HEAD, b"1\r\n \r\n"),
        EngineClient(socket=str(tmp_path / "e.sock"), port=None, key="k", timeout=LIMIT) as client,
        asyncio.timeout(5),
    ):
        start = Start(client, adapter("llama.cpp"), timing, SystemClock(), LIMIT, lambda _: None)
        with pytest.raises(EngineFailed) as failed:
            await start.wait()
    assert failed.value.code == "load_timed_out"


def two() -> tuple[list[Any], list[Any]]:
    """Two engines that serve, and their actors."""
    engines = [
        Engine(
            new_id(), f"m{n}", 1, a_plan(Path("m.gguf")), "k", "x", None, 0.0, state=State.READY, container_id=f"{n}"
        )
        for n in range(2)
    ]
    return engines, [
        SimpleNamespace(deployment=Deployment(an_entry(), "h", engines=[engine], serving=1)) for engine in engines
    ]


async def test_one_engine_keeps_nobody_from_looking_at_the_others() -> None:
    """What breaks the look at the first is not thought of yet: the next thing that an engine answers."""
    engines, actors = two()
    seen: list[Any] = []

    async def look(actor: Any, engine: Any, container: str | None = None) -> None:
        seen.append(engine)
        if engine is engines[0]:
            raise ValueError("what nobody thought of")

    context: Any = SimpleNamespace(
        clock=SystemClock(),
        timing=Timing(),
        runner=SimpleNamespace(client=None, canary=None, tail=None),
        gateway=None,
        automation=None,
        journal=None,
        issues=None,
    )
    for watch in (HealthWatch(context, Roots(), broken=None), CanaryWatch(context)):  # type: ignore[arg-type]
        seen.clear()
        watch._look = look  # type: ignore[method-assign]
        await watch.look(actors)
        assert seen == engines


def test_json_that_is_too_deep_is_none() -> None:
    assert Answer(200, b"[" * (1 << 20)).json() is None


@pytest.mark.parametrize("word", ["progress", "counters"])
async def test_counters_without_end_hold_nobody_up(word: str) -> None:
    """As much as is taken of any answer, all of it lines that look like counters: what else the daemon does goes on."""
    answer = Answer(200, b"a 1\n" * (LARGEST_ANSWER // 4))
    client, longest = _Once(answer), 0.0
    results, said = Results(), Said()
    asking = Asking(lambda _: client, results, SystemClock(), Timing())  # type: ignore[arg-type,return-value]
    engine: Any = SimpleNamespace(id="e", name="e-1", container_id="c", plan=SimpleNamespace(runtime="vllm"))
    if word == "progress":
        asking.progress(engine, said)
        (task,) = asking._out.values()
    else:
        task = asyncio.create_task(counters(client, adapter("vllm"), Timing()))  # type: ignore[arg-type]
    while not task.done():
        before = time.monotonic()
        await asyncio.sleep(0)
        longest = max(longest, time.monotonic() - before)
    assert longest < 0.4, "it takes more than 0.8 s by itself"


class _Once:
    """A client of an engine with one answer to everything."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    async def __aenter__(self) -> _Once:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def get(self, path: str, **_: object) -> Answer:
        return self._answer
