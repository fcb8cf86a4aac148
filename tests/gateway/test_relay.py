"""What passes through: routing, heads, framing, counts; on the fast path and on the plain one."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.gateway.client import Client, build
from tests.gateway.stack import Stack, chat
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def test_chat_goes_to_the_engine_and_back(stack: Stack) -> None:
    (engine,) = await stack.serve("plain")
    response = await stack.ask(chat("plain"))
    assert response.status == 200
    assert response.json()["choices"][0]["message"]["content"] == "x" * 8
    assert response.headers["x-outrider-host"] == "testhost"
    assert response.headers["x-outrider-engine"] == "plain-0-3"
    assert response.headers["x-outrider-plan"] == "ab" * 32
    assert response.headers["x-outrider-method"] == "dflash"
    assert response.headers["date"] != "never"
    assert "server" not in response.headers
    assert "keep-alive" not in response.headers
    assert engine.requests[0].json == chat("plain")
    counts = await stack.counts("plain")
    assert (counts["arrivals"], counts["completed"], counts["in_flight"]) == (1, 1, 0)


async def test_the_engine_gets_its_key_and_not_the_clients_secrets(stack: Stack) -> None:
    (engine,) = await stack.serve("secret")
    await stack.ask(
        chat("secret"),
        Authorization="Bearer client-key",
        X_Api_Key="client-key",
        Cookie="a=client-key",
        Accept_Encoding="gzip",
        Origin="http://localhost:3000",
        X_Early="hop",
        Connection="keep-alive, X-Early, X-Late",
        X_Late="hop",
        X_Request_Id="r-1",
        TE="trailers",
    )
    request = engine.requests[0]
    assert request.line == "POST /v1/chat/completions HTTP/1.1"
    assert request.header("authorization") == "Bearer key-of-secret-0"
    assert request.header("content-type") == "application/json"
    assert request.header("host") == "localhost"
    assert request.header("x-request-id") == "r-1"
    assert "client-key" not in str(request.headers)
    names = {name for name, _ in request.headers}
    assert not names & {"cookie", "x-api-key", "accept-encoding", "origin", "x-early", "x-late", "te", "connection"}


async def test_an_engine_cannot_speak_for_the_gateway(stack: Stack) -> None:
    await stack.serve("liar")
    headers = {
        "X-Outrider-Method": "lies",
        "Access-Control-Allow-Origin": "*",
        "Connection": "X-Hop",
        "X-Hop": "1",
        "X-Kept": "yes",
        "Set-Cookie": "a=b",
    }
    response = await stack.ask(chat("liar", fake={"headers": headers}))
    assert response.headers["x-outrider-method"] == "dflash"
    assert response.headers["x-kept"] == "yes"
    assert not response.headers.keys() & {"access-control-allow-origin", "x-hop", "set-cookie", "connection"}


async def test_an_alias_leads_to_the_same_engine(stack: Stack) -> None:
    (engine,) = await stack.serve("named", aliases=["Nick/Name", "named-too"])
    for name in ("named", "Nick/Name", "named-too"):
        assert (await stack.ask(chat(name))).status == 200
    assert len(engine.requests) == 3
    assert engine.connections == 1, "the connection is to be kept"
    assert (await stack.counts("named"))["completed"] == 3


async def test_completions_have_their_own_path(stack: Stack) -> None:
    (engine,) = await stack.serve("text")
    response = await stack.ask({"model": "text", "prompt": "a"}, "/v1/completions?api-version=1")
    assert response.json()["object"] == "text_completion"
    assert engine.requests[0].line == "POST /v1/completions HTTP/1.1"


async def test_a_stream_arrives_event_by_event(stack: Stack) -> None:
    (engine,) = await stack.serve("stream")
    client = await Client.connect(stack.gateway.address)
    client.post(chat("stream", stream=True, fake={"chunks": 4, "hold_after": 2}))
    head = await client.head()
    assert head.headers["content-type"] == "text/event-stream"
    assert head.headers["x-outrider-engine"] == "stream-0-3"
    early = b""
    while early.count(b"\n\n") < 2:  # the engine waits now: what it wrote has to be here
        early += await client.chunk()
    assert engine.active == 1
    engine.gate.set()
    rest = b""
    while data := await client.chunk():
        rest += data
    events = [line[6:] for line in (early + rest).decode().split("\n") if line.startswith("data: ")]
    assert [json.loads(item)["choices"][0]["delta"]["content"] for item in events[:-1]] == [f"w{i} " for i in range(4)]
    assert events[-1] == "[DONE]"
    stats = (await stack.stats())["engines"]["stream-0"]
    assert stats["events"] == 5
    assert stats["bytes"] == len(early + rest)
    assert stats["in_flight"] == 0
    assert 0 <= stats["ttfb_s"] < 5
    assert 0 <= stats["last_byte_s_ago"] < 5


@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
async def test_every_framing_of_an_engine_is_understood(stack: Stack, framing: str) -> None:
    model = f"framed-{framing}"
    (engine,) = await stack.serve(model)
    client = await Client.connect(stack.gateway.address)
    for size in (1, 200_000):
        client.post(chat(model, fake={"framing": framing, "reply": size}))
        response = await client.response()
        assert response.complete
        assert len(response.json()["choices"][0]["message"]["content"]) == size
    assert engine.connections == (2 if framing == "close" else 1)


async def test_an_engines_refusal_is_the_clients_to_see(stack: Stack) -> None:
    await stack.serve("refusing")
    response = await stack.ask(chat("refusing", stream=True, fake={"status": 400}))
    assert (response.status, response.json()["error"]["message"]) == (400, "engine says no")
    assert (await stack.counts("refusing"))["completed"] == 1
    response = await stack.ask(chat("refusing", fake={"status": 503}))
    assert (response.status, response.json()["error"]["message"]) == (503, "engine says no")
    assert (await stack.counts("refusing"))["failed"] == 1


async def test_the_least_busy_engine_is_chosen(stack: Stack) -> None:
    engines = await stack.serve("pair", 2)
    held = [asyncio.create_task(stack.ask(chat("pair", fake={"hold": True}))) for _ in range(4)]
    await until(lambda: sum(engine.active for engine in engines) == 4, 5)
    assert [engine.active for engine in engines] == [2, 2]
    assert (await stack.counts("pair"))["in_flight"] == 4
    for engine in engines:
        engine.gate.set()
    assert [(await task).status for task in held] == [200] * 4


async def test_an_engine_that_does_not_admit_gets_nothing(stack: Stack) -> None:
    engines = await stack.serve("closed", 2)
    stack.models["closed"]["engines"][0]["admit"] = False
    await stack.publish()
    for _ in range(3):
        assert (await stack.ask(chat("closed"))).status == 200
    assert [len(engine.requests) for engine in engines] == [0, 3]


async def test_a_port_of_the_loopback_serves_as_well(stack: Stack) -> None:
    (engine,) = await stack.serve("port")
    server = await asyncio.start_server(engine._connected, "127.0.0.1", 0)
    entry = stack.models["port"]["engines"][0]
    entry.update(socket=None, port=server.sockets[0].getsockname()[1])
    await stack.publish()
    await engine.stop()
    assert (await stack.ask(chat("port"))).status == 200
    server.close()


async def test_http_1_0_clients_get_no_chunks(stack: Stack) -> None:
    await stack.serve("old")
    client = await Client.connect(stack.gateway.address)
    client.send(build("POST", "/v1/chat/completions", chat("old"), version="1.0"))
    response = await client.response()
    assert (response.status, response.headers["connection"]) == (200, "close")
    assert await client.closed()
    if not stack.fast:
        return  # uvicorn itself sends chunks
    client = await Client.connect(stack.gateway.address)
    client.send(build("POST", "/v1/chat/completions", chat("old", stream=True), version="1.0"))
    response = await client.response()
    assert "transfer-encoding" not in response.headers
    assert response.body.startswith(b"data: ")
    assert response.body.endswith(b"data: [DONE]\n\n")


async def test_requests_in_one_packet_are_answered_in_order(stack: Stack) -> None:
    (engine,) = await stack.serve("pipelined")
    client = await Client.connect(stack.gateway.address)
    bodies = [chat("pipelined", fake={"reply": 5}), chat("nobody"), chat("pipelined", fake={"reply": 7})]
    listing = build("GET", "/v1/models/pipelined")
    client.send(b"".join(build("POST", "/v1/chat/completions", body) for body in bodies) + listing)
    answers = [await client.response() for _ in range(4)]
    assert [answer.status for answer in answers] == [200, 404, 200, 200]
    assert len(answers[0].json()["choices"][0]["text"]) == 5
    assert len(answers[2].json()["choices"][0]["text"]) == 7
    assert answers[3].json()["id"] == "pipelined"
    assert len(engine.requests) == 2


async def test_many_wrong_requests_in_one_packet_do_no_harm(stack: Stack) -> None:
    await stack.serve("first")
    client = await Client.connect(stack.gateway.address)
    wrong = build("POST", "/v1/chat/completions", {"model": "nobody"})
    client.send(wrong + build("POST", "/v1/chat/completions", chat("first")) + wrong * 60)
    statuses = [(await client.response()).status for _ in range(62)]
    assert statuses == [404, 200] + [404] * 60


async def test_thousands_of_requests_in_one_packet_cost_the_connection(stack: Stack) -> None:
    (engine,) = await stack.serve("flooded")
    client = await Client.connect(stack.gateway.address)
    client.post(chat("flooded", fake={"hold": True}))
    await until(lambda: engine.active == 1, 5)
    client.send(build("GET", "/v1/models") * 5000)
    assert await client.closed()
    await until(lambda: engine.open == 0, 5, "the engine is told")


async def test_a_close_is_kept(stack: Stack) -> None:
    await stack.serve("closing")
    client = await Client.connect(stack.gateway.address)
    client.post(chat("closing", stream=True), Connection="close")
    response = await client.response()
    assert response.events()[-1] == "[DONE]"
    assert response.headers["connection"] == "close"
    assert await client.closed()
