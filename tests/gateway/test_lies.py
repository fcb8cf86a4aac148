"""Engines that lie in HTTP: what is wrong stays between the gateway and them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.gateway.client import Client, build
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.inside import inside
from tests.gateway.stack import Stack, chat
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="package")
OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


def lie(engine: FakeEngine, *pieces: bytes | None, close: bool = False) -> None:
    """Let the engine answer everything with these bytes; at None it waits for its gate."""

    async def script(writer: asyncio.StreamWriter) -> bool:
        for piece in pieces:
            if piece is None:
                await engine.gate.wait()
                continue
            writer.write(piece)
            await writer.drain()
        if close:
            writer.write_eof()
        return not close

    engine.script = script


@pytest.mark.parametrize(
    "rest",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nEVIL",
        b"EVIL",
        b"HTTP/1.1 101 X\r\nupgrade: x\r\n\r\n",
        b"\0" * 9000,
    ],
    ids=["a second answer", "more than said", "another protocol", "zeros"],
)
async def test_what_follows_an_answer_is_nobodys(stack: Stack, rest: bytes) -> None:
    model = f"follow-{len(rest)}"
    (engine,) = await stack.serve(model)
    lie(engine, OK + rest)
    client = await Client.connect(stack.gateway.address)
    for _ in range(3):
        client.post(chat(model))
        response = await client.response()
        assert (response.status, response.body) == (200, b"{}")
    client.send(build("GET", "/v1/models"))
    assert (await client.response()).json()["object"] == "list", "not a byte too many on the client's connection"
    assert engine.connections == 3, "such a connection is not used again"
    assert (await stack.counts(model))["completed"] == 3


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"content-length: 2\r\n\r\n{}", "does not speak HTTP"),
        (b"HTTP/1.1 999 X\r\ncontent-length: 2\r\n\r\n{}", "status 999"),
        (b"HTTP/1.1 000 X\r\ncontent-length: 2\r\n\r\n{}", "status 0"),
        (b"HTTP/1.1 101 X\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n", "status 101"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000 + b"\r\ncontent-length: 2\r\n\r\n{}", "too long"),
        (b"HTTP/1.1 103 Early\r\nx: 1\r\n\r\n" * 5000 + OK, "without end"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{}", "Transfer-Encoding"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}", "Content-Length"),
        (b"HTTP/1.1 200 OK\r\nx: a\r\n b: c\r\ncontent-length: 2\r\n\r\n{}", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\ncontent-length: 2\n\n{}", "does not speak HTTP"),
    ],
    ids=[
        "no status",
        "999",
        "000",
        "101",
        "long head",
        "endless 1xx",
        "both lengths",
        "two lengths",
        "folded",
        "bare newlines",
    ],
)
@pytest.mark.parametrize("fast", [True, False], ids=["fast", "asgi"])
async def test_an_answer_that_is_none_is_the_engines_failure(
    tmp_path: Path, fast: bool, answer: bytes, said: str
) -> None:
    async with inside(tmp_path, fast=fast, settle_s=0.0) as gateway:
        lie(gateway.engine, answer)
        client = await gateway.client()
        for _ in range(2):
            client.post(chat("m"))
            response = await client.response()
            assert (response.status, response.code) == (502, "upstream_failed")
            assert said in response.json()["error"]["message"]
        assert gateway.admission.index["m"].failed == 2
        (engine,) = gateway.admission.engines()
        assert (engine.in_flight, engine.errors) == (0, 2)
        await until(lambda: gateway.engine.open == 0, 5)
        client.abort()


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_a_body_stays_one(stack: Stack, status: int) -> None:
    model = f"bodyless-{status}"
    (engine,) = await stack.serve(model)
    lie(engine, b"HTTP/1.1 %d X\r\ncontent-length: 7\r\n\r\n" % status)
    client = await Client.connect(stack.gateway.address)
    for _ in range(2):
        client.post(chat(model))
        response = await client.response()
        assert response.status == status
        assert not {"content-length", "transfer-encoding"} & set(response.headers)
    client.send(build("GET", "/v1/models"))
    assert (await client.response()).status == 200


@pytest.mark.parametrize("bad", [b"zz\r\n", b"-1\r\nx", b"ffffffffffffffffff\r\n", b"3\r\nabcd\r\n"])
async def test_a_stream_of_bad_chunks_ends_with_an_error(stack: Stack, bad: bytes) -> None:
    model = f"chunks-{bad[:2].hex()}"
    (engine,) = await stack.serve(model)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    lie(engine, head + b"9\r\ndata: 1\n\n\r\n", None, bad)
    client = await Client.connect(stack.gateway.address)
    client.post(chat(model, stream=True))
    await client.head()
    assert await client.chunk() == b"data: 1\n\n"
    engine.gate.set()
    assert b"upstream_lost" in await client.chunk()
    assert await client.chunk() == b""
    client.send(build("GET", "/v1/models"))
    assert (await client.response()).json()["object"] == "list", "the framing was right to the end"
    await until(lambda: engine.open == 0, 5)


async def test_an_event_that_was_cut_does_not_swallow_the_error(stack: Stack) -> None:
    (engine,) = await stack.serve("glued")
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    lie(engine, head, b'c\r\ndata: {"half\r\n', b"40\r\n", close=True)
    response = await stack.ask(chat("glued", stream=True))
    assert json.loads(response.events()[-1])["error"]["code"] == "upstream_lost"


@pytest.mark.parametrize("where", ["trailers", "extension"])
async def test_framing_without_a_body_is_not_read_for_ever(stack: Stack, where: str) -> None:
    model = f"barren-{where}"
    (engine,) = await stack.serve(model)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    lie(engine, head, b"0\r\nx: " if where == "trailers" else b"5;x=", *([b"y" * 100_000] * 20))
    response = await stack.ask(chat(model, stream=True))
    assert json.loads(response.events()[-1])["error"]["code"] == "upstream_lost"
    await until(lambda: engine.open == 0, 5)


async def test_chunk_sizes_in_packets_of_their_own_are_no_lie(stack: Stack) -> None:
    (engine,) = await stack.serve("apart")
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    lie(engine, head, *([b"0000000000000009\r\n", b"data: 1\n\n\r\n"] * 5000), b"0\r\n\r\n")
    response = await stack.ask(chat("apart", stream=True))
    assert response.events() == ["1"] * 5000


async def test_an_answer_before_the_request_was_read_is_passed_on(stack: Stack) -> None:
    (engine,) = await stack.serve("hasty-engine")
    await engine.stop()

    ended = asyncio.Event()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 X\r\ncontent-length: 2\r\n\r\n{}")
        while await reader.read(2**20):
            pass
        writer.transport.abort()
        ended.set()

    server = await asyncio.start_unix_server(refuse, str(engine.path))
    response = await stack.ask(chat("hasty-engine", pad="p" * 8_000_000))
    assert (response.status, response.body) == (413, b"{}")
    async with asyncio.timeout(5):
        await ended.wait()
    server.close()


async def test_a_stale_connection_is_replaced_at_the_second_engine_too(tmp_path: Path) -> None:
    """The first engine died, the second one closed an idle connection: neither is the client's business."""
    async with inside(tmp_path) as gateway:
        second = FakeEngine(tmp_path / "second.sock")
        await second.start()
        entry = gateway.entry("second", socket=str(second.path))
        gateway.publish([{**gateway.model(), "engines": [gateway.entry("e"), entry]}])
        clients = [await gateway.client() for _ in range(2)]
        for client in clients:
            client.post(chat("m", fake={"hold": True}))
        await until(lambda: gateway.engine.active == second.active == 1, 5, "one each")
        gateway.engine.gate.set()
        second.gate.set()
        for client in clients:
            assert (await client.response()).status == 200
        await until(lambda: all(engine.pool.idle == 1 for engine in gateway.admission.engines()), 5)
        gateway.engine.path.unlink()  # who comes anew is refused
        for engine in (gateway.engine, second):
            _close_when_asked(engine)
        clients[0].post(chat("m"))
        assert (await clients[0].response()).status == 200
        for client in clients:
            client.abort()
        await second.stop()


def _close_when_asked(engine: FakeEngine) -> None:
    """The next request finds the connection closed; the one after it is answered."""

    async def script(writer: asyncio.StreamWriter) -> bool:
        engine.script = None
        writer.transport.abort()
        return False

    engine.script = script
