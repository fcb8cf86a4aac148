"""Engines that refuse, die, or stall: before the first byte another one, after it the truth."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from tests.gateway.client import Client
from tests.gateway.stack import Stack, chat
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def test_a_refusing_engine_is_replaced(stack: Stack) -> None:
    first, second = await stack.serve("refused", 2)
    await first.stop()
    for _ in range(4):
        assert (await stack.ask(chat("refused"))).status == 200
    assert len(second.requests) == 4
    counts = await stack.counts("refused")
    assert (counts["completed"], counts["failed"]) == (4, 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_dies_before_the_first_byte_is_replaced(stack: Stack, stream: bool) -> None:
    model = f"early-{stream}"
    first, second = await stack.serve(model, 2)
    first.script = _die
    responses = [await stack.ask(chat(model, stream=stream)) for _ in range(3)]
    assert [response.status for response in responses] == [200] * 3
    assert all(response.headers["x-outrider-engine"] == f"{model}-1-3" for response in responses)
    assert len(second.requests) == 3
    assert (await stack.stats())["engines"][f"{model}-0"]["errors"] >= 1


async def _die(writer: asyncio.StreamWriter) -> bool:
    writer.transport.abort()
    return False


async def test_a_busy_answer_moves_to_another_engine(stack: Stack) -> None:
    first, second = await stack.serve("busy", 2)
    first.script = _busy
    responses = [await stack.ask(chat("busy")) for _ in range(2)]
    assert [response.status for response in responses] == [200, 200]
    assert len(second.requests) == 2


async def _busy(writer: asyncio.StreamWriter) -> bool:
    writer.write(b"HTTP/1.1 503 X\r\ncontent-length: 2\r\n\r\n{}")
    return True


async def test_with_no_other_engine_the_failure_is_said(stack: Stack) -> None:
    (engine,) = await stack.serve("alone")
    response = await stack.ask(chat("alone", fake={"die": True}))
    assert (response.status, response.code) == (502, "upstream_failed")
    assert int(response.headers["retry-after"]) >= 1
    assert len(engine.requests) == 1, "not sent twice to the engine that died of it"
    await engine.stop()
    response = await stack.ask(chat("alone"))
    assert (response.status, response.code) == (502, "upstream_failed")
    assert "No such file" in response.json()["error"]["message"]
    assert (await stack.counts("alone"))["failed"] == 2


async def test_a_failure_waits_a_moment_for_the_daemon_to_know_better(stack: Stack) -> None:
    (old,) = await stack.serve("again")
    await old.stop()
    asking = asyncio.create_task(stack.ask(chat("again")))
    await until(lambda: stack.gateway.logged("engine_failed"), 5)
    new = await stack.engine("again-new")
    stack.model("again", "again-new")
    await stack.publish()
    assert (await asking).status == 200
    assert len(new.requests) == 1


async def test_both_engines_dead_is_a_502(stack: Stack) -> None:
    for engine in await stack.serve("both", 2):
        await engine.stop()
    response = await stack.ask(chat("both"))
    assert (response.status, response.code) == (502, "upstream_failed")


@pytest.mark.parametrize("half", [False, True])
async def test_a_stream_cut_short_ends_with_an_error_and_no_done(stack: Stack, half: bool) -> None:
    model = f"cut-{half}"
    await stack.serve(model, 2)
    client = await Client.connect(stack.gateway.address)
    client.post(chat(model, stream=True, fake={"chunks": 5, "die_after": 2, "half": half}))
    response = await client.response()
    assert response.complete, "the framing has to be right to the end"
    events = [item for item in response.body.decode().split("\n\n") if item]
    assert events[-1].startswith("data: ")
    assert json.loads(events[-1][6:])["error"]["code"] == "upstream_lost"
    assert "[DONE]" not in response.body.decode()
    assert len(events) == (4 if half else 3)
    client.post(chat(model))  # the connection is still good
    assert (await client.response()).status == 200
    counts = await stack.counts(model)
    assert (counts["failed"], counts["completed"], counts["broken_off"]) == (1, 1, 1)


async def test_a_whole_answer_cut_short_is_cut_for_the_client(stack: Stack) -> None:
    (engine,) = await stack.serve("torn")
    engine.script = _tear
    response = await stack.ask(chat("torn"))
    assert not response.complete
    assert (await stack.counts("torn"))["failed"] == 1


async def _tear(writer: asyncio.StreamWriter) -> bool:
    writer.write(b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"a": ')
    await writer.drain()
    writer.write_eof()
    return False


async def test_an_engine_that_speaks_no_http_is_a_failure(stack: Stack) -> None:
    (engine,) = await stack.serve("garbled")
    engine.script = _garble
    response = await stack.ask(chat("garbled"))
    assert (response.status, response.code) == (502, "upstream_failed")


async def _garble(writer: asyncio.StreamWriter) -> bool:
    writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
    await writer.drain()
    return True


async def test_an_engine_that_closes_idle_connections_costs_no_request(stack: Stack) -> None:
    (engine,) = await stack.serve("racing")
    engine.close_after = 5
    done = 0

    async def ask_many(count: int) -> None:
        nonlocal done
        client = await Client.connect(stack.gateway.address)
        for _ in range(count):
            client.post(chat("racing"))
            assert (await client.response()).status == 200
            done += 1
        client.abort()

    await asyncio.gather(*(ask_many(60) for _ in range(5)))
    assert done == 300
    assert engine.connections >= 60
    assert (await stack.stats())["engines"]["racing-0"]["errors"] == 0


async def test_a_full_queue_of_new_connections_is_waited_for(stack: Stack) -> None:
    (engine,) = await stack.serve("backlog")
    await engine.stop()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(engine.path))
        listener.listen(1)
        asking = [asyncio.create_task(stack.ask(chat("backlog"))) for _ in range(8)]
        await until(lambda: _in_flight(stack, "backlog-0", 8), 5)
        listener.setblocking(False)
        server = await asyncio.start_unix_server(engine._connected, sock=listener)
        assert [(await task).status for task in asking] == [200] * 8
        server.close()


async def _in_flight(stack: Stack, engine: str, count: int) -> bool:
    return bool((await stack.stats())["engines"][engine]["in_flight"] == count)
