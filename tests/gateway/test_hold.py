"""Requests that wait for an engine: in order, within bounds, and with signs of life."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.gateway.client import Client
from tests.gateway.stack import Stack, chat
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def test_held_requests_are_served_in_order_once_an_engine_is_there(stack: Stack) -> None:
    await _loading(stack, "soon")
    asking = []
    for number in range(3):
        asking.append(asyncio.create_task(stack.ask(chat("soon", number=number))))
        await _waiting(stack, "soon", number + 1)
    engine = await stack.engine("soon-0")
    stack.model("soon", "soon-0")
    await stack.publish()
    assert [(await task).status for task in asking] == [200] * 3
    assert [request.json["number"] for request in engine.requests] == [0, 1, 2]
    counts = await stack.counts("soon")
    assert (counts["arrivals"], counts["completed"], counts["waiting"]) == (3, 3, 0)


async def test_a_full_queue_turns_the_next_away(stack: Stack) -> None:
    await _loading(stack, "full", retry_after_s=42.0)
    clients = [await Client.connect(stack.gateway.address) for _ in range(3)]
    for client in clients:
        client.post(chat("full"))
    await _waiting(stack, "full", 3)
    response = await stack.ask(chat("full"))
    assert (response.status, response.code) == (503, "queue_full")
    assert response.headers["retry-after"] == "42"
    assert (await stack.counts("full"))["rejected"] == 1
    clients[0].abort()  # who leaves makes room
    await _waiting(stack, "full", 2)
    clients.append(await Client.connect(stack.gateway.address))
    clients[-1].post(chat("full"))
    await _waiting(stack, "full", 3)
    assert (await stack.counts("full"))["cancelled"] == 1


async def test_without_hold_a_model_without_an_engine_is_refused(stack: Stack) -> None:
    stack.model("down", hold=False, state="failed", reason="out of memory", retry_after_s=7.2)
    await stack.publish()
    response = await stack.ask(chat("down", stream=True))
    assert (response.status, response.code) == (503, "model_not_ready")
    assert "out of memory" in response.json()["error"]["message"]
    assert response.headers["retry-after"] == "8"


async def test_when_hold_ends_without_an_engine_the_waiting_are_told(stack: Stack) -> None:
    await _loading(stack, "gave-up")
    asking = asyncio.create_task(stack.ask(chat("gave-up")))
    await _waiting(stack, "gave-up", 1)
    stack.model("gave-up", hold=False, state="failed", reason={"code": "too_big", "text": "does not fit"})
    await stack.publish()
    response = await asking
    assert (response.status, response.code) == (503, "model_not_ready")
    assert "does not fit" in response.json()["error"]["message"]


async def test_when_the_model_goes_the_waiting_are_told(stack: Stack) -> None:
    await _loading(stack, "removed")
    asking = asyncio.create_task(stack.ask(chat("removed")))
    await _waiting(stack, "removed", 1)
    del stack.models["removed"]
    await stack.publish()
    response = await asking
    assert (response.status, response.code) == (404, "model_not_found")


async def test_a_switch_holds_what_comes_meanwhile(stack: Stack) -> None:
    (old,) = await stack.serve("switched")
    stack.models["switched"]["engines"][0]["admit"] = False
    stack.models["switched"]["hold"] = True
    await stack.publish()
    asking = asyncio.create_task(stack.ask(chat("switched")))
    await _waiting(stack, "switched", 1)
    new = await stack.engine("switched-new")
    stack.models["switched"]["engines"].append(stack.entry("switched-new", generation=4))
    await stack.publish()
    assert (await asking).headers["x-outrider-engine"] == "switched-new-4"
    assert (len(old.requests), len(new.requests)) == (0, 1)


async def test_a_held_stream_gets_comments_and_then_its_events(stack: Stack) -> None:
    await _loading(stack, "patient")
    client = await Client.connect(stack.gateway.address)
    client.post(chat("patient", stream=True))
    head = await client.head()  # long before there is an engine
    assert head.status == 200
    assert head.headers["content-type"].startswith("text/event-stream")
    assert head.headers["x-outrider-host"] == "testhost"
    assert "x-outrider-engine" not in head.headers
    assert (await client.chunk()).startswith(b": ")
    assert (await client.chunk()).startswith(b": ")
    await stack.serve("patient")
    body = b""
    while data := await client.chunk():
        body += data
    parts = [part for part in body.decode().split("\n\n") if part and part != ": waiting for an engine"]
    assert parts[0] == f": x-outrider-engine=patient-0-3 x-outrider-plan={'ab' * 32} x-outrider-method=dflash"
    assert parts[-1] == "data: [DONE]"
    assert len(parts) == 5
    assert (await stack.counts("patient"))["completed"] == 1


async def test_errors_of_a_held_stream_are_events(stack: Stack) -> None:
    for model, fake in (("odd-status", {"status": 400}), ("odd-death", {"die": True})):
        await _loading(stack, model)
        client = await Client.connect(stack.gateway.address)
        client.post(chat(model, stream=True, fake=fake))
        assert (await client.head()).status == 200
        await stack.serve(model)
        body = b""
        while data := await client.chunk():
            body += data
        last = [part for part in body.decode().split("\n\n") if part][-1]
        assert last.startswith("data: ")
        error = json.loads(last[6:])["error"]
        assert error["code"] == (400 if fake.get("status") else "upstream_failed")
        assert b"[DONE]" not in body


async def test_a_waiting_request_that_is_no_stream_gets_no_comments(stack: Stack) -> None:
    await _loading(stack, "silent")
    held = await Client.connect(stack.gateway.address)
    held.post(chat("silent", stream=True))
    plain = await Client.connect(stack.gateway.address)
    plain.post(chat("silent"))
    await held.head()
    await held.chunk()
    await stack.serve("silent")
    response = await plain.response()
    assert (response.status, response.headers["x-outrider-method"]) == (200, "dflash")


async def test_leaving_a_held_stream_gives_its_place_back(stack: Stack) -> None:
    await _loading(stack, "left-held")
    client = await Client.connect(stack.gateway.address)
    client.post(chat("left-held", stream=True))
    await client.head()
    client.abort()
    await _waiting(stack, "left-held", 0)
    assert (await stack.counts("left-held"))["cancelled"] == 1


@pytest_asyncio.fixture(loop_scope="package")
async def hasty(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """A gateway whose patience ends soon."""
    started = await Stack.start(tmp_path_factory.mktemp("hasty"), "--hold-s", "0.5")
    yield started
    await started.stop()


async def test_waiting_ends(hasty: Stack) -> None:
    await _loading(hasty, "never", reason="it loads for long")
    streaming = await Client.connect(hasty.gateway.address)
    streaming.post(chat("never", stream=True))
    response = await hasty.ask(chat("never"))
    assert (response.status, response.code) == (503, "hold_timeout")
    assert "it loads for long" in response.json()["error"]["message"]
    assert int(response.headers["retry-after"]) >= 1
    stream = await streaming.response()
    assert stream.status == 200
    assert json.loads(stream.events()[-1])["error"]["code"] == "hold_timeout"
    assert (await hasty.counts("never"))["rejected"] == 2


async def test_the_first_that_waits_is_told_to_the_daemon_at_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The next report would come in minutes: the one that comes is the request's own."""
    slow = await Stack.start(tmp_path_factory.mktemp("slow"), "--timing-scale", "1000")
    try:
        await _loading(slow, "first")
        before = len(slow.daemon.reports)
        client = await Client.connect(slow.gateway.address)
        client.post(chat("first"))
        await until(lambda: len(slow.daemon.reports) > before, 10, "a report")
        assert slow.daemon.reports[-1]["models"]["first"]["waiting"] == 1
        client.abort()
    finally:
        await slow.stop()


async def test_a_stopping_gateway_turns_the_waiting_away(hasty: Stack) -> None:
    await _loading(hasty, "stopped")
    asking = asyncio.create_task(hasty.ask(chat("stopped")))
    await _waiting(hasty, "stopped", 1)
    assert await hasty.gateway.stop() == 0
    response = await asking
    assert (response.status, response.code) == (503, "shutting_down")


async def _loading(stack: Stack, model: str, **fields: object) -> None:
    stack.model(model, **fields)
    await stack.publish()


async def _waiting(stack: Stack, model: str, count: int) -> None:
    async def there() -> bool:
        return (await stack.counts(model))["waiting"] == count

    await until(there, 5, f"{count} waiting for {model}")
