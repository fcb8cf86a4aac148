"""Clients that leave and clients that do not read: the engine's work ends, memory stays."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import pytest

from tests.gateway.client import Client, build
from tests.gateway.stack import Stack, chat
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="package")
MIB = 1024 * 1024


async def test_leaving_a_stream_ends_it_at_the_engine(stack: Stack) -> None:
    (engine,) = await stack.serve("left")
    client = await Client.connect(stack.gateway.address)
    client.post(chat("left", stream=True, fake={"chunks": 100, "hold_after": 1}))
    await client.head()
    await client.chunk()
    client.abort()
    gone = time.monotonic()
    await until(lambda: engine.cancelled == 1, 5)
    assert time.monotonic() - gone < 1.0
    await until(lambda: engine.open == 0, 5)
    counts = await stack.counts("left")
    assert (counts["cancelled"], counts["in_flight"]) == (1, 0)


async def test_leaving_before_the_first_byte_ends_the_work_too(stack: Stack) -> None:
    (engine,) = await stack.serve("unheard")
    clients = [await Client.connect(stack.gateway.address) for _ in range(20)]
    for client in clients:
        client.post(chat("unheard", fake={"hold": True}))
    await until(lambda: engine.active == 20, 5)
    gone = time.monotonic()
    for client in clients:
        client.abort()
    await until(lambda: engine.cancelled == 20, 5)
    assert time.monotonic() - gone < 1.0
    assert (await stack.counts("unheard"))["cancelled"] == 20


async def test_leaving_while_connecting_gives_the_place_back(stack: Stack) -> None:
    (engine,) = await stack.serve("dialled")
    await engine.stop()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(engine.path))
        listener.listen(0)
        with socket.socket(socket.AF_UNIX) as filler:
            filler.connect(str(engine.path))
            client = await Client.connect(stack.gateway.address)
            client.post(chat("dialled"))
            await until(lambda: _waits(stack, "dialled"), 5)
            client.abort()
            await until(lambda: _cancelled(stack, "dialled"), 5)
    assert (await stack.counts("dialled"))["in_flight"] == 0


async def _waits(stack: Stack, model: str) -> bool:
    return (await stack.counts(model))["in_flight"] == 1


async def _cancelled(stack: Stack, model: str) -> bool:
    return (await stack.counts(model))["cancelled"] == 1


async def test_leaving_a_pipelined_request_ends_it(stack: Stack) -> None:
    (engine,) = await stack.serve("queued")
    client = await Client.connect(stack.gateway.address)
    request = build("POST", "/v1/chat/completions", chat("queued", stream=True, fake={"chunks": 9, "gap": 0.05}))
    client.send(request * 2)
    await client.head()
    client.abort()
    await until(lambda: engine.cancelled == 1, 5)
    await until(lambda: engine.open == 0, 5)
    assert len(engine.requests) == 1


async def test_an_unread_stream_costs_no_memory(stack: Stack) -> None:
    (engine,) = await stack.serve("unread")
    assert (await stack.ask(chat("unread", stream=True))).status == 200
    before = _resident(stack)
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    raw.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(raw, stack.gateway.address)
    body = chat("unread", stream=True, fake={"chunks": 70_000, "padding": 1000})
    await loop.sock_sendall(raw, build("POST", "/v1/chat/completions", body))
    await until(lambda: engine.active == 1, 5)
    still = {"bytes": -1, "same": 0}

    async def stalled() -> bool:
        now = int((await stack.stats())["engines"]["unread-0"]["bytes"])
        still["same"] = still["same"] + 1 if now == still["bytes"] and now > 0 else 0
        still["bytes"] = now
        return still["same"] >= 10

    await until(stalled, 10, "back-pressure")
    assert engine.active == 1
    assert still["bytes"] < 20 * MIB
    assert _resident(stack) - before < 5 * MIB
    raw.close()
    await until(lambda: engine.cancelled == 1, 5)


async def test_a_slow_reader_gets_everything(stack: Stack) -> None:
    await stack.serve("slow")
    client = await Client.connect(stack.gateway.address)
    client.post(chat("slow", stream=True, fake={"chunks": 3000, "padding": 1000}))
    await client.head()
    await until(lambda: _paused(stack), 5)
    events = b""
    while data := await client.chunk():
        events += data
    assert events.count(b"\n\n") == 3001
    assert events.endswith(b"data: [DONE]\n\n")


async def _paused(stack: Stack) -> bool:
    """Enough has come through that only the client's reading can bring the rest."""
    return bool((await stack.stats())["engines"]["slow-0"]["bytes"] > 1_000_000)


def _resident(stack: Stack) -> int:
    """Bytes."""
    assert stack.gateway.process is not None
    pages = Path(f"/proc/{stack.gateway.process.pid}/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * 4096
