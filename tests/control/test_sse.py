"""Event streams over real sockets: they follow, they end, they never pile up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, MutableMapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.control.sse import EventStream, Message, Streams
from orchestrator.errors import TimedOut
from tests.control.conftest import Served
from tests.control.memory_facade import failing
from tests.control.raw import ask, connected, request
from tests.waiting import until


class Reader:
    """One stream, message by message."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.aiter_lines()

    async def next(self) -> dict[str, Any]:
        """The next message: event, data (decoded) and id where there is one."""
        fields: dict[str, Any] = {}
        async with asyncio.timeout(5):
            async for line in self._lines:
                if line == "" and fields:
                    fields["data"] = json.loads(fields["data"])
                    return fields
                name, _, value = line.partition(": ")
                if name:
                    fields[name] = value
        raise EOFError


async def test_events_follow_and_the_iterator_is_closed(served: Served) -> None:
    await served.facade.happen("first", "before")
    async with served.unix.stream("GET", "/api/v1/events?follow=true") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        reader = Reader(response)
        first = await reader.next()
        assert (first["event"], first["id"], first["data"]["code"]) == ("event", "1", "first")
        await served.facade.happen("second", "two\nlines\r\nof text")
        second = await reader.next()
        assert second["id"] == "2"
        assert second["data"]["text"] == "two\nlines\r\nof text"
        assert served.facade.open_iterators == 1
        assert served.server.open_streams == 1
    await until(lambda: served.facade.open_iterators == 0, 2, "the iterator closed")
    await until(lambda: served.server.open_streams == 0, 2)


@pytest.mark.parametrize("last_seen", ["Last-Event-ID", "since"])
async def test_a_broken_stream_goes_on_where_it_was(served: Served, last_seen: str) -> None:
    for n in range(4):
        await served.facade.happen("tick", str(n))
    headers = {"Last-Event-ID": "3"} if last_seen == "Last-Event-ID" else {}
    since = 0 if headers else 3
    async with served.tcp.stream("GET", f"/api/v1/events?follow=true&since={since}", headers=headers) as response:
        assert (await Reader(response).next())["id"] == "4"


async def test_logs_follow_until_the_engine_is_gone(served: Served) -> None:
    async with served.unix.stream("GET", "/api/v1/deployments/smollm2/logs?tail=1&follow=true") as response:
        reader = Reader(response)
        assert (await reader.next())["data"] == {"stream": "stderr", "text": "line 5"}
        await served.facade.print_line("exited")
        assert (await reader.next())["data"]["text"] == "exited"
        assert await reader.next() == {"event": "end", "data": {"reason": "complete"}}
        with pytest.raises(EOFError):
            await reader.next()
    assert served.facade.open_iterators == 0


async def test_the_routing_table_comes_at_once_and_again(served: Served) -> None:
    async with served.unix.stream("GET", "/api/v1/gateway/table") as response:
        reader = Reader(response)
        assert await reader.next() == {"event": "table", "id": "1", "data": served.facade.table}
        await served.facade.route()
        assert (await reader.next())["id"] == "2"


async def test_a_stream_that_fails_at_once_is_a_plain_problem(served: Served) -> None:
    missing = await served.unix.get("/api/v1/deployments/none/logs?follow=true")
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
    served.facade.fail = failing("events", TimedOut("the journal is busy"))
    late = await served.unix.get("/api/v1/events?follow=true")
    assert (late.status_code, late.json()["code"]) == (504, "timed_out")
    assert late.headers["retry-after"] == "5"
    assert served.facade.open_iterators == 0


@pytest.mark.parametrize(
    ("error", "code"), [(TimedOut("lost"), "timed_out"), (ZeroDivisionError("secret"), "internal")]
)
async def test_an_error_in_the_middle_is_one_event(served: Served, error: Exception, code: str) -> None:
    await served.facade.happen("first", "")
    async with served.unix.stream("GET", "/api/v1/events?follow=true") as response:
        reader = Reader(response)
        await reader.next()
        served.facade.fail = failing("event", error)
        await served.facade.happen("second", "")
        last = await reader.next()
        assert (last["event"], last["data"]["code"]) == ("error", code)
        assert "secret" not in json.dumps(last)
        with pytest.raises(EOFError):
            await reader.next()
    assert served.facade.open_iterators == 0


async def test_a_reader_that_does_not_read_stops_the_source(served: Served) -> None:
    served.facade.endless_log = True
    socket: Path = served.paths.control_socket
    async with connected(socket) as (reader, writer):
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(request(target="/api/v1/deployments/smollm2/logs?follow=true").encode())
        made, still = -1, 0

        def settled() -> bool:
            nonlocal made, still
            still = still + 1 if served.facade.lines_made == made and made > 0 else 0
            made = served.facade.lines_made
            return still >= 10

        await until(settled, 5, "the source stopped")
        # 1 KB a line: the kernel's buffers of both ends, uvicorn's 64 KiB and the queue's eight places
        assert served.facade.lines_made < 1000
        assert (await ask(socket, request(target="/healthz"))).status == 200
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(5):
            for _ in range(100):
                await reader.readexactly(20_000)
        assert served.facade.lines_made > 1500
        served.facade.endless_log = False
    await until(lambda: served.facade.open_iterators == 0, 2, "the iterator closed")


async def test_a_stopping_server_ends_streams_with_a_word(served: Served) -> None:
    async with served.unix.stream("GET", "/api/v1/events?follow=true") as response:
        reader = Reader(response)
        await until(lambda: served.facade.open_iterators == 1, 2)
        stopping = asyncio.create_task(served.server.stop(30.0))
        assert await reader.next() == {"event": "end", "data": {"reason": "stopping"}}
        async with asyncio.timeout(2):  # not the 30 s that other requests may have
            await stopping
    assert served.facade.open_iterators == 0


# without a server: what takes seconds of silence there


class Wire:
    """An ASGI client whose reading can be stopped."""

    def __init__(self) -> None:
        self.sent = b""
        self.more = True
        self.reading = asyncio.Event()
        self.reading.set()
        self.left = asyncio.Event()
        self.aborted = False
        self.scope: MutableMapping[str, Any] = {"type": "http", "state": {"abort": self.abort}}

    def abort(self) -> None:
        self.aborted = True

    async def receive(self) -> MutableMapping[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        await self.reading.wait()
        self.sent += message.get("body", b"")
        self.more = message.get("more_body", True)


class Quiet:
    """A source that says one thing, then nothing; it counts its ends."""

    def __init__(self, first: str | None = "hello") -> None:
        self.first = first
        self.begun = False
        self.ended = 0

    async def items(self) -> AsyncIterator[str]:
        self.begun = True
        try:
            async with asyncio.timeout(30):  # held across yields: only one task may run this generator
                if self.first is not None:
                    yield self.first
                await asyncio.Event().wait()
        finally:
            self.ended += 1


def stream(source: AsyncIterator[str], **options: float) -> EventStream:
    return EventStream(source, lambda text: Message("log", text), Streams(), **options)


async def test_silence_is_filled_with_comments() -> None:
    wire, quiet = Wire(), Quiet()
    task = asyncio.create_task(stream(quiet.items(), ping_s=0.01)(wire.scope, wire.receive, wire.send))
    await until(lambda: wire.sent.count(b": ping\n\n") >= 3, 2)
    assert wire.sent.startswith(b'event: log\ndata: "hello"\n\n: ping\n\n')
    wire.left.set()
    await asyncio.wait_for(task, 2)
    assert quiet.ended == 1


async def test_a_stalled_reader_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    wire, quiet = Wire(), Quiet()
    wire.reading.clear()
    await asyncio.wait_for(stream(quiet.items(), stall_s=0.05)(wire.scope, wire.receive, wire.send), 2)
    assert wire.aborted
    assert quiet.ended == 1
    assert "its reader took nothing" in caplog.text


async def test_a_source_that_is_cancelled_from_inside_ends_the_stream() -> None:
    wire = Wire()

    async def items() -> AsyncIterator[str]:
        yield "hello"
        raise asyncio.CancelledError

    await asyncio.wait_for(stream(items())(wire.scope, wire.receive, wire.send), 2)
    assert b"event: error" in wire.sent
    assert wire.more is False


async def test_a_cancelled_response_closes_its_source() -> None:
    wire, quiet = Wire(), Quiet(first=None)
    task = asyncio.create_task(stream(quiet.items())(wire.scope, wire.receive, wire.send))
    await until(lambda: quiet.begun, 1)
    task.cancel()
    await asyncio.wait({task}, timeout=2)
    assert task.cancelled()
    assert quiet.ended == 1
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_a_message_is_one_line_of_data() -> None:
    text = Message("log", {"t": "a\r\nevent: table\n\n"}, "7").encode()
    assert text == b'id: 7\nevent: log\ndata: {"t":"a\\r\\nevent: table\\n\\n"}\n\n'
