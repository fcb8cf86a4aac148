"""Descriptors, disk and time that run out: what runs goes on, what cannot be had is said, and then all is well."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.gateway.client import Client
from tests.gateway.inside import inside
from tests.gateway.stack import Stack, chat
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="package")
FILES = 100


@pytest_asyncio.fixture(loop_scope="package")
async def own(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    made = await Stack.start(tmp_path_factory.mktemp("own"))
    yield made
    assert await made.stop() == 0


def limit(stack: Stack, what: int, soft: int) -> None:
    assert stack.gateway.process is not None
    _, hard = resource.prlimit(stack.gateway.process.pid, what)
    resource.prlimit(stack.gateway.process.pid, what, (soft, hard))


def cpu(stack: Stack) -> float:
    """Seconds."""
    assert stack.gateway.process is not None
    fields = Path(f"/proc/{stack.gateway.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


async def test_without_descriptors_the_engines_name_stays_good(own: Stack) -> None:
    (engine,) = await own.serve("m")
    client = await Client.connect(own.gateway.address)
    client.post(chat("nobody"))
    assert (await client.response()).status == 404
    limit(own, resource.RLIMIT_NOFILE, 3)
    client.post(chat("m"))
    response = await client.response()
    assert (response.status, response.code) == (503, "gateway_exhausted")
    assert response.headers["retry-after"]
    assert not own.gateway.logged("engine_failed")
    limit(own, resource.RLIMIT_NOFILE, 4096)
    client.post(chat("m"))
    assert (await client.response()).status == 200
    stats = (await own.stats())["engines"]["m-0"]
    assert (stats["errors"], stats["in_flight"]) == (0, 0)
    assert len(engine.requests) == 1


async def test_more_clients_than_descriptors_are_survived(own: Stack) -> None:
    await own.serve("m")
    stream = await Client.connect(own.gateway.address)
    stream.post(chat("m", stream=True, fake={"hold_after": 1}))
    await stream.head()
    limit(own, resource.RLIMIT_NOFILE, FILES)
    clients = await asyncio.gather(*(Client.connect(own.gateway.address) for _ in range(3 * FILES)))
    ends = [asyncio.ensure_future(client.reader.read(1)) for client in clients]
    await until(lambda: sum(end.done() for end in ends) >= 2 * FILES, 5, "the rest to be turned away")
    before = cpu(own)
    own.engines["m-0"].gate.set()
    data = b""
    while piece := await stream.chunk():
        data += piece
    assert data.endswith(b"data: [DONE]\n\n"), "who is connected is served"
    for client in (*clients, stream):
        client.abort()
    await asyncio.gather(*ends, return_exceptions=True)
    await until(lambda: _serves(own), 5, "service")
    assert cpu(own) - before < 0.5


async def test_a_listener_that_was_lost_comes_back(tmp_path: Path) -> None:
    """uvloop closes a listening socket whose `accept` fails in a way it does not know, and tells nobody."""
    async with inside(tmp_path) as gateway:
        for server in gateway.listener._servers:
            server.close()
        await asyncio.sleep(0)
        with pytest.raises(ConnectionRefusedError):
            await gateway.client()
        await gateway.later(1)
        client = await gateway.client()
        client.post(chat("m"))
        assert (await client.response()).status == 200
        client.abort()


async def test_a_full_disk_stops_no_request(own: Stack) -> None:
    await own.serve("m")
    saved = own.gateway.paths.routing_table
    await until(lambda: saved.exists() and json.loads(saved.read_text())["revision"] == own.revision, 5)
    before = saved.read_text()
    limit(own, resource.RLIMIT_FSIZE, 0)
    await own.serve("later")
    await until(lambda: own.gateway.logged("table_not_saved"), 5)
    for model in ("m", "later"):
        assert (await own.ask(chat(model))).status == 200
    assert saved.read_text() == before, "the last whole table is still there"
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]
    limit(own, resource.RLIMIT_FSIZE, resource.RLIM_INFINITY)
    await own.publish()
    await until(lambda: json.loads(saved.read_text())["revision"] == own.revision, 5)


async def test_a_folder_that_cannot_be_written_stops_no_request(own: Stack) -> None:
    folder = own.gateway.paths.routing_table.parent
    await until(own.gateway.paths.routing_table.exists, 5)
    folder.rename(folder.with_name("away"))
    folder.write_text("in the way")
    await own.serve("m")
    await until(lambda: own.gateway.logged("table_not_saved"), 5)
    assert (await own.ask(chat("m"))).status == 200
    folder.unlink()


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "asgi"])
async def test_what_has_to_end_with_the_gateway_is_told(tmp_path: Path, fast: bool) -> None:
    async with inside(tmp_path, fast=fast) as gateway:
        bodies: list[dict[str, Any]] = [
            chat("m", stream=True, fake={"hold_after": 1}),
            chat("m", fake={"hold": True}),
            chat("m", stream=True, fake={"hold": True}),
        ]
        clients = [await gateway.client() for _ in bodies]
        for client, body in zip(clients, bodies, strict=True):
            client.post(body)
        await clients[0].head()
        await clients[0].chunk()
        await until(lambda: gateway.engine.active == 3, 5)
        gateway.admission.stop()
        gateway.listener.stop_accepting()
        assert await gateway.listener.finish(0.05) == 3
        gateway.admission.cut_off()
        assert b"shutting_down" in await clients[0].chunk()
        assert await clients[0].chunk() == b"", "no [DONE], but the framing is right"
        for client in clients[1:]:
            response = await client.response()
            assert (response.status, response.code) == (503, "shutting_down")
        assert await gateway.listener.finish(5.0) == 0
        await until(lambda: gateway.engine.cancelled == 3, 5)
        assert gateway.admission.index["m"].in_flight == 0


async def test_sigterm_before_a_request_is_whole(own: Stack) -> None:
    await own.serve("m")
    client = await Client.connect(own.gateway.address)
    body = json.dumps(chat("m")).encode()
    client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n{" % len(body))
    await until(lambda: _holds(own, 1), 5)
    assert own.gateway.process is not None
    own.gateway.process.send_signal(signal.SIGTERM)
    await until(lambda: own.gateway.logged("stopping"), 5)
    client.send(body[1:])
    response = await client.response()
    assert (response.status, response.code) == (503, "shutting_down")
    assert await client.closed()
    assert await own.gateway.exited() == 0


async def _serves(stack: Stack) -> bool:
    try:
        return (await stack.ask(chat("m"))).status == 200
    except (ConnectionError, asyncio.IncompleteReadError):
        return False


async def _holds(stack: Stack, size: int) -> bool:
    return f"outrider_gateway_held_body_bytes {size}\n" in (await stack.ops("/metrics")).body.decode()
