"""Tables that change while requests are at every stage, and what is left afterwards: nothing."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from api.gateway.metrics import render
from tests.gateway.client import Client
from tests.gateway.inside import Inside, inside
from tests.gateway.stack import Stack, chat
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="package")


@pytest_asyncio.fixture(loop_scope="package")
async def gateway(tmp_path: Path) -> AsyncIterator[Inside]:
    async with inside(tmp_path, settle_s=0.0) as made:
        yield made
        await made.open(0)
        assert made.admission.bodies.held == 0
        assert not made.admission.running


async def rest(client: Client) -> bytes:
    """What is left of a chunked body."""
    data = b""
    while piece := await client.chunk():
        data += piece
    client.abort()
    return data


async def streaming(gateway: Inside, model: str = "m") -> Client:
    """A client in the middle of a stream."""
    client = await gateway.client()
    client.post(chat(model, stream=True, fake={"hold_after": 1}))
    assert (await client.head()).status == 200
    await client.chunk()
    return client


async def test_a_renamed_model_keeps_its_streams(gateway: Inside) -> None:
    client = await streaming(gateway)
    gateway.publish([gateway.model("new", generation=2)])
    (engine,) = gateway.admission.engines()
    assert engine.in_flight == 1
    other = await gateway.client()
    other.post(chat("m"))
    assert (await other.response()).code == "model_not_found"
    other.post(chat("new"))
    assert (await other.response()).headers["x-outrider-engine"] == "e-2"
    other.abort()
    gateway.engine.gate.set()
    assert (await rest(client)).endswith(b"data: [DONE]\n\n")
    assert engine.in_flight == 0


async def test_an_old_name_can_become_an_alias(gateway: Inside) -> None:
    gateway.publish([{**gateway.model("new"), "aliases": ["m", "new", "other"]}, {"name": "other", "state": "stopped"}])
    client = await gateway.client()
    client.post(chat("m"))
    assert (await client.response()).status == 200
    client.post(chat("other"))
    assert (await client.response()).code == "model_not_ready", "a name wins over an alias"
    client.abort()


async def test_a_stream_outlives_its_engines_place_in_the_table(gateway: Inside) -> None:
    client = await streaming(gateway)
    gateway.publish([])
    gateway.publish([gateway.model()])
    gateway.publish([])
    draining = asyncio.create_task(gateway.admission.drain("e", 5.0))
    await asyncio.sleep(0)
    assert not draining.done()
    gateway.engine.gate.set()
    assert (await rest(client)).endswith(b"data: [DONE]\n\n")
    assert await draining == 0
    assert not list(gateway.admission.engines())


async def test_an_engine_that_goes_while_it_is_dialled(stack: Stack) -> None:
    (old,) = await stack.serve("dialling")
    await old.stop()
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as filler:
        listener.bind(str(old.path))
        listener.listen(0)
        filler.connect(str(old.path))
        client = await Client.connect(stack.gateway.address)
        client.post(chat("dialling"))
        await until(lambda: _dials(stack), 5)
        await stack.engine("dialling-new")
        stack.model("dialling", "dialling-new")
        await stack.publish()
        old.path.unlink()
    assert (await client.response()).headers["x-outrider-engine"] == "dialling-new-3"
    engines = (await stack.stats())["engines"]
    assert "dialling-0" not in engines
    assert engines["dialling-new"]["in_flight"] == 0


async def _dials(stack: Stack) -> bool:
    return (await stack.counts("dialling"))["in_flight"] == 1


async def test_an_engine_that_failed_is_tried_again_when_a_hold_ends_with_it(gateway: Inside) -> None:
    """It refused for a moment, the daemon held the model, and calls the same engine ready again."""
    await gateway.engine.stop()
    gateway.publish([{**gateway.model(admit=True), "hold": True}])
    client = await gateway.client()
    client.post(chat("m"))
    await until(lambda: len(gateway.admission.index["m"].room) == 1, 5)
    gateway.publish([{**gateway.model(admit=False), "hold": True}])
    await gateway.engine.start()
    gateway.publish([gateway.model()])
    assert (await client.response()).status == 200
    client.abort()


async def test_a_drain_that_ran_out_of_time_stays_in_force(gateway: Inside) -> None:
    client = await streaming(gateway)
    assert await gateway.admission.drain("e", 0.01) == 1
    stopped = gateway.revision
    other = await gateway.client()

    async def code() -> str:
        other.post(chat("m"))
        response = await other.response()
        return "served" if response.status == 200 else response.code

    assert await code() == "model_not_ready"
    gateway.revision = stopped - 1
    gateway.publish([gateway.model()])
    assert await code() == "model_not_ready", "the same table again"
    gateway.publish([gateway.model(admit=False)])
    assert await code() == "model_not_ready", "a newer table of the same opinion"
    gateway.publish([gateway.model()])
    assert await code() == "served"
    gateway.engine.gate.set()
    await rest(client)
    other.abort()


async def test_a_model_that_comes_back_counts_anew(gateway: Inside) -> None:
    """The daemon takes a name that was not in the last report for new: old counts would be counted twice."""
    client = await gateway.client()
    for _ in range(3):
        client.post(chat("m"))
        assert (await client.response()).status == 200
    client.abort()
    gateway.publish([])
    assert _reported(gateway) == {}
    gateway.publish([gateway.model()])
    assert _reported(gateway)["m"]["arrivals"] == 0


async def test_thousands_of_models_that_come_and_go_leave_nothing(gateway: Inside) -> None:
    for round_ in range(20):
        gateway.publish([_many(gateway, f"{round_}-{number}") for number in range(200)])
    assert len(gateway.admission._models) == 200
    assert len(list(gateway.admission.engines())) == 200
    gateway.publish([gateway.model()])
    assert len(gateway.admission._models) == len(list(gateway.admission.engines())) == 1


async def test_a_big_table_is_taken_in_a_moment(gateway: Inside) -> None:
    models = [_many(gateway, str(number)) for number in range(5000)]
    gateway.publish(models)
    began = time.process_time()  # not the wall's: others use this machine too
    models[7]["state"] = "draining"
    gateway.publish(models)
    assert time.process_time() - began < 1.0, "streams stand still meanwhile"


async def test_hostile_names_make_no_labels(gateway: Inside) -> None:
    before = render(gateway.admission, linked=True)
    client = await gateway.client()
    for name in ("x" * 5000, 'a"} 1\nevil{b="', "m\n", "\ud800", "../m", "M"):
        client.send(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b"
            % (len(body := _named(name)), body)
        )
        assert (await client.response()).code == "model_not_found"
    client.abort()
    after = render(gateway.admission, linked=True)
    assert _names(after) == _names(before)


def _reported(gateway: Inside) -> dict[str, dict[str, int]]:
    found = gateway.admission.report()["models"]
    assert isinstance(found, dict)
    return found


def _many(gateway: Inside, name: str) -> dict[str, Any]:
    return {"name": name, "aliases": [f"alias-{name}"], "state": "ready", "engines": [gateway.entry(f"e{name}")]}


def _named(name: str) -> bytes:

    return json.dumps({"model": name}).encode()


def _names(metrics: str) -> list[str]:
    return [line.rpartition(" ")[0] for line in metrics.splitlines()]
