"""The handshake before an engine is stopped: nothing new goes there, and the answer comes when nothing is left."""

from __future__ import annotations

import asyncio
import stat

import pytest

from tests.gateway.client import Client
from tests.gateway.stack import Stack, chat
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def test_an_idle_engine_is_drained_at_once(stack: Stack) -> None:
    (engine,) = await stack.serve("idle")
    await stack.ask(chat("idle"))
    response = await stack.drain("idle-0")
    assert (response.status, response.json()) == (200, {"engine": "idle-0", "in_flight": 0})
    await until(lambda: engine.open == 0, 5, "idle connections closed")
    assert (await stack.ask(chat("idle"))).code == "model_not_ready"
    assert len(engine.requests) == 1


async def test_draining_waits_for_what_is_in_flight(stack: Stack) -> None:
    old, new = await stack.serve("busy-drain", 2)
    stack.models["busy-drain"]["engines"][1]["admit"] = False
    await stack.publish()
    client = await Client.connect(stack.gateway.address)
    client.post(chat("busy-drain", stream=True, fake={"hold_after": 1}))
    await client.head()
    stack.models["busy-drain"]["engines"][1]["admit"] = True
    await stack.publish()
    draining = asyncio.create_task(stack.drain("busy-drain-0"))
    await until(lambda: stack.gateway.logged("drain_started"), 5)
    for _ in range(3):
        assert (await stack.ask(chat("busy-drain"))).headers["x-outrider-engine"] == "busy-drain-1-3"
    assert not draining.done()
    assert (len(old.requests), len(new.requests)) == (1, 3)
    old.gate.set()
    body = b""
    while data := await client.chunk():
        body += data
    assert body.endswith(b"data: [DONE]\n\n")
    assert (await draining).json() == {"engine": "busy-drain-0", "in_flight": 0}


async def test_draining_has_a_deadline(stack: Stack) -> None:
    (engine,) = await stack.serve("stuck")
    client = await Client.connect(stack.gateway.address)
    client.post(chat("stuck", fake={"hold": True}))
    await until(lambda: engine.active == 1, 5)
    response = await stack.drain("stuck-0", 0.05)
    assert (response.status, response.json()["in_flight"]) == (504, 1)
    assert (await stack.ask(chat("stuck"))).status == 503, "it stays closed"
    client.abort()
    assert (await stack.drain("stuck-0")).json()["in_flight"] == 0


async def test_only_a_newer_table_opens_a_drained_engine(stack: Stack) -> None:
    (engine,) = await stack.serve("reopened")
    assert (await stack.drain("reopened-0", revision=stack.revision + 1)).status == 200
    await stack.publish()  # this one was under way when the drain was asked for
    assert (await stack.ask(chat("reopened"))).status == 503
    await stack.publish()
    assert (await stack.ask(chat("reopened"))).status == 200
    assert len(engine.requests) == 1


async def test_a_drained_engine_may_come_into_the_table_later(stack: Stack) -> None:
    assert (await stack.drain("unheard-of", revision=stack.revision + 1)).json()["in_flight"] == 0
    await stack.engine("unheard-of")
    stack.model("late", "unheard-of")
    await stack.publish()
    assert (await stack.ask(chat("late"))).status == 503


async def test_an_engine_that_leaves_the_table_ends_its_work(stack: Stack) -> None:
    old, _ = await stack.serve("replaced", 2)
    stack.model("replaced", "replaced-0")
    await stack.publish()
    client = await Client.connect(stack.gateway.address)
    client.post(chat("replaced", stream=True, fake={"hold_after": 1}))
    await client.head()
    stack.model("replaced", "replaced-1")
    await stack.publish()
    draining = asyncio.create_task(stack.drain("replaced-0"))
    await until(lambda: stack.gateway.logged("drain_started"), 5)
    assert (await stack.stats())["engines"]["replaced-0"]["in_flight"] == 1
    old.gate.set()
    while await client.chunk():
        pass
    assert (await draining).status == 200
    assert "replaced-0" not in (await stack.stats())["engines"]


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        [],
        {},
        {"engine": 1, "timeout_s": 1},
        {"engine": "e"},
        {"engine": "e", "timeout_s": "1"},
        {"engine": "e", "timeout_s": 1, "revision": "x"},
    ],
    ids=str,
)
async def test_wrong_orders_are_refused(stack: Stack, body: object) -> None:
    response = await stack.door("POST", "/drain", body)
    assert response.status == 400
    assert response.json()["error"]


async def test_the_door_is_for_its_owner_only(stack: Stack) -> None:
    mode = stack.gateway.paths.gateway_socket.stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600
    assert (await stack.door("GET", "/healthz")).json() == {"status": "ok"}
    assert (await stack.door("GET", "/v1/models")).status == 404
