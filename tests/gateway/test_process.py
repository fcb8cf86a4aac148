"""The process: what it imports, what it locks, how it starts, fails and ends."""

from __future__ import annotations

import os
import resource
import signal
import socket
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from orchestrator.paths import Paths, find, prepare
from tests.gateway.client import Client
from tests.gateway.fake_daemon import FakeDaemon
from tests.gateway.stack import Gateway, Stack, chat
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="package")
WITH_MODULES = """
import atexit, json, sys
from api.gateway.main import main
def tell():
    print(json.dumps({"event": "modules", "level": "info", "names": sorted(sys.modules)}), file=sys.stderr)
atexit.register(tell)
sys.exit(main())
"""

WITH_FEW_FILES = """
import resource, sys
from api.gateway.main import main
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 4096))
sys.exit(main())
"""


@pytest_asyncio.fixture(loop_scope="package")
async def paths(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Paths]:
    yield prepare(find(state_dir=tmp_path_factory.mktemp("p"), environ={}))


async def test_the_gateway_stays_small(paths: Paths) -> None:
    gateway = Gateway(paths)
    await gateway.start(command=("-c", WITH_MODULES))
    stack = Stack(paths.state_dir, gateway, _no_daemon(paths))
    for path in ("/v1/models", "/nothing"):
        await stack.ask(None, path)
    await stack.ask(chat("nobody"))
    await stack.ops("/metrics")
    await stack.drain("nobody")
    assert await gateway.stop() == 0
    line = gateway.logged("modules")
    assert line is not None
    loaded = {name.partition(".")[0] for name in line["names"]}
    assert "uvicorn" in loaded
    forbidden = {"fastapi", "starlette", "pydantic", "pydantic_core", "httpx", "httpx2", "httpcore", "anyio"}
    assert not loaded & (forbidden | {"podman", "typer", "rich", "aiohttp", "requests", "openai", "structlog"})


async def test_one_state_folder_has_one_gateway(paths: Paths) -> None:
    first, second = Gateway(paths), Gateway(paths)
    await first.start()
    assert first.process is not None
    pid = (paths.run_dir / "gateway.pid").read_text().strip()
    assert pid == str(first.process.pid)
    await second.start(wait=False)
    assert await second.exited() == 4
    line = second.logged("failed")
    assert line is not None
    assert line["code"] == "conflict"
    assert pid in line["detail"]
    stack = Stack(paths.state_dir, first, _no_daemon(paths))
    assert (await stack.door("GET", "/healthz")).status == 200, "the first one's socket is untouched"
    assert await first.stop() == 0
    assert not (paths.run_dir / "gateway.pid").exists()
    third = Gateway(paths)
    await third.start()
    assert await third.stop() == 0


async def test_what_a_killed_gateway_leaves_does_not_hinder(paths: Paths) -> None:
    first = Gateway(paths)
    await first.start()
    await first.kill()
    assert paths.gateway_socket.exists()
    second = Gateway(paths)
    await second.start()
    assert await second.stop() == 0


async def test_there_are_descriptors_for_many_streams(paths: Paths) -> None:
    gateway = Gateway(paths)
    await gateway.start(command=("-c", WITH_FEW_FILES))
    assert gateway.process is not None
    assert resource.prlimit(gateway.process.pid, resource.RLIMIT_NOFILE) == (4096, 4096)
    assert await gateway.stop() == 0


@pytest.mark.parametrize("option", ["--listen", "--ops-listen"])
async def test_a_port_in_use_is_named(paths: Paths, option: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        gateway = Gateway(paths)
        await gateway.start(option, f"127.0.0.1:{port}", wait=False)
        assert await gateway.exited() == 1
    line = gateway.logged("failed")
    assert line is not None
    assert line["code"] == "cannot_listen"
    assert f"127.0.0.1:{port}" in line["detail"]
    assert "in use" in line["detail"]


async def test_wrong_settings_are_a_usage_error(paths: Paths) -> None:
    paths.config_dir.mkdir()
    paths.config_file.write_text("[gateway]\nhold_s = 'long'\n")
    gateway = Gateway(paths)
    await gateway.start(wait=False)
    assert await gateway.exited() == 2
    line = gateway.logged("failed")
    assert line is not None
    assert line["code"] == "config_invalid"
    assert str(paths.config_file) in line["detail"]
    assert "gateway.hold_s" in line["detail"]


async def test_sigterm_lets_answers_end(tmp_path_factory: pytest.TempPathFactory) -> None:
    stack = await Stack.start(tmp_path_factory.mktemp("term"))
    (engine,) = await stack.serve("m")
    idle = await Client.connect(stack.gateway.address)
    idle.post(chat("m"))
    assert (await idle.response()).status == 200
    busy = await Client.connect(stack.gateway.address)
    busy.post(chat("m", stream=True, fake={"hold_after": 1}))
    await busy.head()
    assert stack.gateway.process is not None
    stack.gateway.process.send_signal(signal.SIGTERM)
    await until(lambda: stack.gateway.logged("stopping"), 5)
    assert await idle.closed()
    with pytest.raises(ConnectionRefusedError):
        await Client.connect(stack.gateway.address)
    engine.gate.set()
    body = b""
    while data := await busy.chunk():
        body += data
    assert body.endswith(b"data: [DONE]\n\n")
    assert await stack.gateway.exited() == 0
    line = stack.gateway.logged("stopped")
    assert line is not None
    assert line["cut"] == 0
    assert not stack.gateway.paths.gateway_socket.exists()
    await stack.daemon.stop()
    await engine.stop()


async def test_the_table_and_the_log_hold_no_secret_for_others(tmp_path_factory: pytest.TempPathFactory) -> None:
    stack = await Stack.start(tmp_path_factory.mktemp("log"))
    await stack.serve("m")
    await stack.ask(chat("m", fake={"die": True}), Authorization="Bearer client-key")
    assert (await stack.ops("/metrics")).body.count(b"key-of") == 0
    assert b"key-of" not in (await stack.door("GET", "/stats")).body
    assert await stack.stop() == 0
    text = str(list(stack.gateway.log))
    assert "key-of" not in text
    assert "client-key" not in text


async def test_many_streams_left_at_once_leave_nothing_behind(tmp_path_factory: pytest.TempPathFactory) -> None:
    stack = await Stack.start(tmp_path_factory.mktemp("many"))
    (engine,) = await stack.serve("m")
    count = 100
    clients = [await Client.connect(stack.gateway.address) for _ in range(count)]
    for client in clients:
        client.post(chat("m", stream=True, fake={"hold_after": 1}))
    for client in clients:
        await client.head()
        await client.chunk()
    for client in clients:
        client.abort()
    await until(lambda: engine.cancelled == count, 5)
    counts = await stack.counts("m")
    assert (counts["cancelled"], counts["in_flight"]) == (count, 0)
    assert stack.gateway.process is not None
    left = len(os.listdir(f"/proc/{stack.gateway.process.pid}/fd"))
    assert left < 40, "no connection is left over"
    assert await stack.stop() == 0


def _no_daemon(paths: Paths) -> FakeDaemon:
    return FakeDaemon(paths.control_socket)
