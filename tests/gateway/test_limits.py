"""Clients that take their time, take too much, or take nothing: none of them may hold the gateway's means for ever."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.gateway.client import Client, build
from tests.gateway.inside import Inside, inside
from tests.gateway.stack import Stack, chat
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="package")
POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"


@pytest_asyncio.fixture(loop_scope="package", params=[True, False], ids=["fast", "asgi"])
async def gateway(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Inside]:
    limits = {"max_body_bytes": 300_000, "max_held_bytes": 500_000}
    async with inside(tmp_path, fast=request.param, **limits) as made:
        yield made
        await made.open(0)
        assert made.admission.bodies.held == 0
        assert not made.admission.running


async def test_who_says_nothing_is_sent_away(gateway: Inside) -> None:
    client = await gateway.client()
    await gateway.open(1)
    await gateway.later(29)
    await gateway.open(1)
    await gateway.later(2)
    assert await client.closed()


async def test_a_dribbled_head_has_a_deadline(gateway: Inside) -> None:
    client = await gateway.client()
    client.send(b"GET /v1/models HTTP/1.1\r\nx: ")
    await until(lambda: _received(gateway) > 0, 5)
    for _ in range(4):
        await _send(gateway, client, b"x")
        await gateway.later(8)
    response = await client.response()
    assert (response.status, response.code) == (408, "request_timeout")
    assert await client.closed()


async def test_a_dribbled_body_has_a_deadline(gateway: Inside) -> None:
    client = await gateway.client()
    client.send(POST + b"content-length: 100000\r\n\r\n{")
    await until(lambda: _received(gateway) > 0, 5)
    for _ in range(4):
        await _send(gateway, client, b" ")
        await gateway.later(8)
    response = await client.response()
    assert (response.status, response.code) == (408, "request_timeout")
    assert await client.closed()
    assert not gateway.engine.requests


async def test_a_slow_but_steady_body_is_waited_for(gateway: Inside) -> None:
    body = json.dumps(chat("m", pad="p" * 200_000)).encode()
    client = await gateway.client()
    client.send(POST + b"content-length: %d\r\n\r\n" % len(body))
    await until(lambda: _received(gateway) > 0, 5)
    for start in range(0, len(body), 50_000):
        await gateway.later(8)
        await _send(gateway, client, body[start : start + 50_000], sure=start + 50_000 < len(body))
    assert (await client.response()).status == 200
    client.abort()


async def test_an_idle_connection_is_kept_for_75_seconds(gateway: Inside) -> None:
    client = await gateway.client()
    for _ in range(2):
        client.post(chat("m"))
        assert (await client.response()).status == 200
        await gateway.later(70)
    await gateway.later(6)
    assert await client.closed()


async def test_a_request_in_work_has_no_deadline(gateway: Inside) -> None:
    client = await gateway.client()
    client.post(chat("m", fake={"hold": True}))
    await until(lambda: gateway.engine.active == 1, 5)
    await gateway.later(100_000)
    gateway.engine.gate.set()
    assert (await client.response()).status == 200
    client.abort()


async def test_an_answer_that_nobody_takes_is_given_up(gateway: Inside) -> None:
    raw = await _unread(gateway)
    (connection,) = gateway.connections
    await until(lambda: connection.flow.write_paused, 5, "back-pressure")
    await _settled(gateway)
    await gateway.later(299)
    assert gateway.engine.active == 1
    await gateway.later(2)
    await until(lambda: gateway.engine.cancelled == 1, 5)
    raw.close()


async def test_an_answer_that_somebody_takes_slowly_is_not(gateway: Inside) -> None:
    raw = await _unread(gateway)
    for _ in range(4):
        await _settled(gateway)
        await gateway.later(200)
        size = 0
        while size < 3_000_000:
            size += len(await asyncio.get_running_loop().sock_recv(raw, 2**20))
    assert gateway.engine.active == 1
    raw.close()
    await until(lambda: gateway.engine.cancelled == 1, 5)


async def test_bodies_have_a_limit_all_together(gateway: Inside) -> None:
    big = chat("m", pad="p" * 200_000, fake={"hold": True})
    waiting = [await gateway.client() for _ in range(2)]
    for client in waiting:
        client.post(big)
    await until(lambda: gateway.engine.active == 2, 5)
    held = gateway.admission.bodies.held
    assert 400_000 < held < 401_000
    for headers in ({}, {"Expect": "100-continue"}):
        client = await gateway.client()
        client.post(big, **headers)
        response = await client.response()
        if response.status == 100:
            response = await client.response()
        assert (response.status, response.code) == (503, "bodies_full")
        assert response.headers["retry-after"] == "5"
    small = await gateway.client()
    small.post(chat("m"))
    assert (await small.response()).status == 200, "small ones still pass"
    small.abort()
    await until(lambda: gateway.admission.bodies.held == held, 5)
    gateway.engine.gate.set()
    for client in waiting:
        assert (await client.response()).status == 200
        client.abort()


async def test_a_body_that_was_left_is_not_held(gateway: Inside) -> None:
    for ending in ("leaves", "garbles"):
        client = await gateway.client()
        client.send(POST + b"transfer-encoding: chunked\r\n\r\n186a0\r\n" + b" " * 100_000)
        await until(lambda: gateway.admission.bodies.held == 100_000, 5)
        if ending == "leaves":
            client.abort()
        else:
            client.send(b"\r\nzz\r\n")
            assert (await client.response()).code == "invalid_http"
        await until(lambda: gateway.admission.bodies.held == 0, 5)


@pytest.mark.parametrize("where", ["trailers", "extension"])
async def test_framing_without_end_is_cut_off(gateway: Inside, where: str) -> None:
    client = await gateway.client()
    begun = b"0\r\nx: " if where == "trailers" else b"5;x="
    client.send(POST + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n" + begun)
    await until(lambda: _received(gateway) > 0, 5)
    for _ in range(16):
        await _send(gateway, client, b"y" * 4096)
    client.send(b"y")
    response = await client.response()
    assert (response.status, response.code) == (431, "headers_too_large")


async def test_trailers_are_no_headers(gateway: Inside) -> None:
    body = json.dumps(chat("m")).encode()
    client = await gateway.client()
    client.send(
        POST + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\nx-late: 1\r\nhost: evil\r\n\r\n" % (len(body), body)
    )
    assert (await client.response()).status == 200
    assert gateway.engine.requests[0].header("x-late") is None
    client.abort()


async def test_one_client_more_than_there_may_be_is_told(tmp_path: Path) -> None:
    async with inside(tmp_path, most=2) as gateway:
        clients = [await gateway.client() for _ in range(2)]
        await gateway.open(2)
        third = await gateway.client()
        response = await third.response()
        assert (response.status, response.code) == (503, "too_many_connections")
        assert await third.closed()
        clients[0].abort()
        await gateway.open(1)
        fourth = await gateway.client()
        fourth.post(chat("m"))
        assert (await fourth.response()).status == 200


async def test_a_body_of_millions_of_parts_is_refused_unread(stack: Stack) -> None:
    response = await stack.ask(b'{"model": "m", "x": [' + b"[]," * 1_100_000 + b"[]]}")
    assert (response.status, response.code) == (400, "request_too_intricate")


def _received(gateway: Inside) -> int:
    return sum(connection.received for connection in gateway.connections)


async def _unread(gateway: Inside) -> socket.socket:
    """A client that asked for a long stream and reads nothing of it."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    raw.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(raw, gateway.address)
    body = chat("m", stream=True, fake={"chunks": 100_000, "padding": 1000})
    await loop.sock_sendall(raw, build("POST", "/v1/chat/completions", body))
    await until(lambda: gateway.engine.active == 1, 5)
    return raw


async def _send(gateway: Inside, client: Client, data: bytes, *, sure: bool = True) -> None:
    """Send, and with `sure` wait until it is read."""
    size = _received(gateway) + len(data)
    client.send(data)
    if sure:
        await until(lambda: _received(gateway) == size, 5)


async def _settled(gateway: Inside) -> None:
    """Wait until no more bytes come from the engine."""
    (engine,) = gateway.admission.engines()
    seen: list[int] = []

    def still() -> bool:
        seen.append(engine.bytes)
        return len(seen) > 5 and seen[-5:] == [engine.bytes] * 5 and engine.bytes > 0

    await until(still, 5, "back-pressure")
