"""Living with and without the daemon."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from api.gateway.admission import Admission, Limits
from api.gateway.link import Link
from orchestrator.paths import find, prepare
from orchestrator.timing import Timing
from tests.gateway.fake_daemon import FakeDaemon
from tests.gateway.stack import BOOT_ID, Gateway, Stack, chat
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="package")


@pytest_asyncio.fixture(loop_scope="package")
async def orphan(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """A gateway that is not started yet, with an engine, and no daemon."""
    paths = prepare(find(state_dir=tmp_path_factory.mktemp("orphan"), environ={}))
    made = Stack(paths.state_dir, Gateway(paths), FakeDaemon(paths.control_socket))
    await made.engine("e")
    made.model("m", "e")
    made.revision = 7
    yield made
    assert await made.stop() == 0


async def test_a_gateway_without_a_daemon_goes_on_with_its_table(orphan: Stack) -> None:
    orphan.gateway.paths.routing_table.write_text(orphan.text())
    await orphan.gateway.start()
    assert (await orphan.ask(chat("m"))).status == 200
    assert await orphan.health() == {"status": "ok", "daemon": False, "table": "disk", "revision": 7}
    await until(lambda: orphan.gateway.logged("daemon_unreachable"), 5)
    await orphan.daemon.start()
    await orphan.publish()
    assert (await orphan.health())["table"] == "daemon"
    await orphan.daemon.stop()
    await until(lambda: orphan.gateway.logged("daemon_lost"), 5)
    assert (await orphan.ask(chat("m"))).status == 200
    await orphan.daemon.start()
    await until(lambda: orphan.daemon.followers == 1, 5, "the link is taken up again")


async def test_what_its_old_tables_engine_lost_waits_for_the_daemon(orphan: Stack) -> None:
    """After a reboot within one boot id (a container's) the gateway is up first, and its engines are gone."""
    await orphan.engines["e"].stop()
    orphan.gateway.paths.routing_table.write_text(orphan.text())
    await orphan.gateway.start("--timing-scale", "0.5")
    request = asyncio.create_task(orphan.ask(chat("m")))
    await until(lambda: orphan.gateway.logged("engine_failed"), 5)
    assert not (await asyncio.wait({request}, timeout=1.5))[0], "it waits for longer than for a living daemon's table"
    await orphan.engine("f")
    orphan.model("m", "f")
    await orphan.daemon.start()
    await orphan.publish()
    assert (await request).status == 200


@pytest.mark.parametrize("fields", [{"boot_id": "another"}, {"owner": "another"}, {"schema": 9}])
async def test_a_table_of_another_boot_or_folder_is_void(orphan: Stack, fields: dict[str, object]) -> None:
    orphan.gateway.paths.routing_table.write_text(orphan.text(**fields))
    await orphan.gateway.start()
    assert orphan.gateway.logged("table_on_disk_refused")
    response = await orphan.ask(chat("m"))
    assert (response.status, response.code) == (404, "model_not_found")
    assert "daemon" in response.json()["error"]["message"]


async def test_the_daemons_table_is_kept_on_disk(stack: Stack) -> None:
    await stack.serve("kept")
    path = stack.gateway.paths.routing_table
    await until(lambda: path.exists() and json.loads(path.read_text())["revision"] == stack.revision, 5)
    assert json.loads(path.read_text()) == json.loads(stack.text())
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("kind", ["garbage", "other boot", "older"])
async def test_a_table_that_cannot_be_used_leaves_the_old_one(stack: Stack, kind: str) -> None:
    model = f"kept-{kind}"
    await stack.serve(model)
    stack.gateway.log.clear()
    match kind:
        case "garbage":
            stack.daemon.publish('{"schema": 1, "models": "no"}')
        case "other boot":
            stack.daemon.publish(stack.text(boot_id="another", revision=stack.revision + 1))
        case _:
            stack.daemon.publish(stack.text(revision=stack.revision - 1, models=[]))
    await until(lambda: stack.gateway.logged("table_refused"), 5)
    assert (await stack.ask(chat(model))).status == 200
    assert (await stack.health())["revision"] == stack.revision
    await stack.publish()
    assert (await stack.ask(chat(model))).status == 200


async def test_a_new_daemon_may_count_anew(stack: Stack) -> None:
    await stack.serve("recounted")
    await stack.drain("recounted-0")
    await stack.daemon.stop()
    stack.revision = 1
    stack.daemon.table = stack.text()
    await stack.daemon.start()
    await until(stack.in_force, 5)
    assert (await stack.ask(chat("recounted"))).status == 200, "the drain was the old daemon's"


async def test_a_slow_daemon_holds_up_nothing(tmp_path: Path) -> None:
    """It sends a table of megabytes in pieces, and answers no report."""
    paths = prepare(find(state_dir=tmp_path, environ={}))
    tables: asyncio.Queue[bytes] = asyncio.Queue()
    reports = served = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal reports, served
        served += 1
        try:
            await answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # it was given up
        finally:
            writer.transport.abort()
            served -= 1

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal reports
        if (await reader.readuntil(b"\r\n\r\n")).startswith(b"POST "):
            reports += 1
            while await reader.read(2**20):
                pass
        else:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
            while piece := await tables.get():
                writer.write(piece)
                await writer.drain()

    server = await asyncio.start_unix_server(serve, str(paths.control_socket))
    admission = Admission(Limits(), wall=0.0)
    timing = replace(Timing().scaled(0.02), gateway_call=0.05)
    link = Link(
        admission,
        socket=paths.control_socket,
        table_file=paths.routing_table,
        boot_id=BOOT_ID,
        owner=paths.owner,
        timing=timing,
    )
    running = asyncio.create_task(link.run())
    stack = Stack(tmp_path, Gateway(paths), FakeDaemon(paths.control_socket), revision=5)
    for number in range(5000):
        stack.model(f"m{number}", "e", reason="r" * 400)
        stack.models[f"m{number}"]["engines"][0]["engine"] = f"e{number}"
    raw = b"event: table\ndata: " + stack.text().encode() + b"\n\n"
    assert len(raw) > 3_000_000
    for start in range(0, len(raw) - 100, 50_000):
        tables.put_nowait(raw[start : min(start + 50_000, len(raw) - 100)])
    await until(tables.empty, 5)
    assert not link.up
    tables.put_nowait(raw[-100:])
    await until(lambda: link.up, 5)
    assert len(admission.models()) == 5000
    await until(lambda: reports >= 3, 5, "reports are tried again")
    stack.revision, stack.models = 6, {}
    tables.put_nowait(b"event: table\ndata: " + stack.text().encode() + b"\n\n")
    await until(lambda: admission.models() == [], 5)
    running.cancel()
    tables.put_nowait(b"")
    await asyncio.gather(running, return_exceptions=True)
    await link.settle()
    server.close()
    await until(lambda: served == 0, 5, "the daemon's connections to end")
    admission.close()


async def test_a_daemon_that_says_nothing_is_asked_anew(tmp_path: Path) -> None:
    paths = prepare(find(state_dir=tmp_path, environ={}))
    daemon = FakeDaemon(paths.control_socket, mute=True)
    await daemon.start()
    admission = Admission(Limits(), wall=0.0)
    link = Link(
        admission,
        socket=paths.control_socket,
        table_file=paths.routing_table,
        boot_id=BOOT_ID,
        owner=paths.owner,
        timing=Timing().scaled(0.02),
        silence=0.1,
    )
    running = asyncio.create_task(link.run())
    await until(lambda: daemon.connections >= 2, 5)
    assert not link.up
    daemon.mute = False
    daemon.table = Stack(tmp_path, Gateway(paths), daemon, revision=5).text()
    await until(lambda: link.up, 5)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await link.settle()
    await daemon.stop()
    admission.close()
