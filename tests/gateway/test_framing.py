"""Requests whose framing is doubtful: nobody may slip a second request into a first one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.gateway.client import build
from tests.gateway.inside import Inside, inside
from tests.gateway.stack import chat
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="package")
POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
INNER = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 13\r\n\r\n" + b'{"model":"m"}'
CHUNKED = b"2\r\n{}\r\n0\r\n\r\n"


@pytest_asyncio.fixture(loop_scope="package", params=[True, False], ids=["fast", "asgi"])
async def gateway(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Inside]:
    async with inside(tmp_path, fast=request.param) as made:
        yield made
        await made.open(0)
        assert made.admission.bodies.held == 0
        assert not made.admission.running
        assert made.admission.index["m"].in_flight == 0


@pytest.mark.parametrize(
    "request_",
    [
        POST + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n" + CHUNKED,
        POST + b"transfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n" + CHUNKED,
        POST + b"content-length: 2\r\ncontent-length: 90\r\n\r\n{}",
        POST + b"content-length: +2\r\n\r\n{}",
        POST + b"content-length: 2, 2\r\n\r\n{}",
        POST + b"content-length: 99999999999999999999\r\n\r\n{}",
        POST + b"transfer-encoding: chunked, identity\r\n\r\n" + CHUNKED,
        POST + b"transfer-encoding: xchunked\r\n\r\n" + CHUNKED,
        POST + b"transfer-encoding : chunked\r\n\r\n" + CHUNKED,
        POST + b"transfer-encoding:\x0bchunked\r\n\r\n" + CHUNKED,
        POST + b"x: a\r\n y: b\r\ncontent-length: 2\r\n\r\n{}",
        POST + b"x: a\rcontent-length: 2\r\n\r\n{}",
        POST + b"x: a\0b\r\ncontent-length: 2\r\n\r\n{}",
        POST.replace(b"\r\n", b"\n") + b"content-length: 2\n\n{}",
        POST + b"transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n{}\r\n",
        POST + b"transfer-encoding: chunked\r\n\r\n2\r\n{}x\r\n0\r\n\r\n",
        b"CONNECT localhost:80 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /v1/models HTTP/1.2\r\nhost: localhost\r\n\r\n",
    ],
    ids=lambda value: str(value[60:110]),
)
async def test_doubtful_framing_ends_the_connection(gateway: Inside, request_: bytes) -> None:
    client = await gateway.client()
    client.send(request_ + INNER)
    response = await client.response()
    assert response.status == 400
    assert await client.closed()
    assert not gateway.engine.requests


async def test_garbage_behind_a_request_ends_both(gateway: Inside) -> None:
    client = await gateway.client()
    client.post(chat("m", fake={"hold": True}))
    await until(lambda: gateway.engine.active == 1, 5)
    client.send(b"\0\0\0\0")
    assert await client.closed()
    await until(lambda: gateway.engine.cancelled == 1, 5)


async def test_a_body_in_the_smallest_pieces_arrives(gateway: Inside) -> None:
    body = json.dumps(chat("m")).encode()
    client = await gateway.client()
    for byte in POST + b"transfer-encoding: chunked\r\n\r\n" + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body):
        client.send(bytes((byte,)))
        await asyncio.sleep(0)
    assert (await client.response()).status == 200
    assert gateway.engine.requests[0].body == body
    client.abort()


async def test_who_offers_another_protocol_is_served_in_this_one(gateway: Inside) -> None:
    """Java's client, and curl --http2, offer HTTP/2 with each request until somebody takes it up."""
    offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQCAAAAAAIAAAAA"}
    client = await gateway.client()
    for _ in range(2):
        client.send(build("POST", "/v1/chat/completions", chat("m", pad="p" * 100_000), **offer))
        assert (await client.response()).status == 200
        client.send(build("GET", "/v1/models", **offer))
        assert (await client.response()).status == 200
    body = json.dumps(chat("m")).encode()
    request = POST + b"connection: upgrade\r\nupgrade: websocket\r\ntransfer-encoding: chunked\r\n\r\n"
    client.send(request + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) + build("GET", "/v1/models", **offer) * 3)
    for _ in range(4):
        assert (await client.response()).status == 200
    assert [len(request.body) > 100_000 for request in gateway.engine.requests] == [True, True, False]
    assert all(request.header("upgrade") is None for request in gateway.engine.requests)
    client.abort()


async def test_requests_behind_a_close_are_not_read(gateway: Inside) -> None:
    client = await gateway.client()
    first = build("POST", "/v1/chat/completions", chat("m"), Connection="close")
    client.send(first + first)
    assert (await client.response()).status == 200
    assert await client.closed()
    assert len(gateway.engine.requests) == 1


async def test_who_closes_one_half_has_left(gateway: Inside) -> None:
    """A closed half looks like a client that is gone, and an engine's time is dearer than a half-closed client."""
    client = await gateway.client()
    client.post(chat("m", stream=True, fake={"hold": True}))
    await until(lambda: gateway.engine.active == 1, 5)
    client.writer.write_eof()
    await until(lambda: gateway.engine.cancelled == 1, 5)
    assert await client.closed()


@pytest.mark.parametrize("when", ["in the head", "in the body"])
async def test_leaving_within_a_request_leaves_nothing(gateway: Inside, when: str) -> None:
    client = await gateway.client()
    client.send(POST if when == "in the head" else POST + b"content-length: 100\r\n\r\n{")
    await until(lambda: any(connection.received for connection in gateway.connections), 5)
    client.writer.write_eof()
    assert await client.closed()
    assert not gateway.engine.requests


async def test_pipelined_bodies_wait_their_turn(gateway: Inside) -> None:
    client = await gateway.client()
    sizes = [1, 90_000, 2, 300_000, 3]
    client.post(chat("m", fake={"hold": True}))
    for size in sizes:
        client.send(build("POST", "/v1/chat/completions", chat("m", pad="p" * size)))
    await until(lambda: gateway.engine.active == 1, 5)
    gateway.engine.gate.set()
    for _ in range(6):
        assert (await client.response()).status == 200
    assert [len(request.json.get("pad", "")) for request in gateway.engine.requests] == [0, *sizes]
    client.abort()
