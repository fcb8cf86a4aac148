"""The listeners: who may open the socket, what is in the way, how it starts and stops."""

from __future__ import annotations

import asyncio
import dataclasses
import grp
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import uvloop

from api.control.listeners import TcpAddress, bind_unix
from api.control.server import ControlServer, default_gateway_uids
from orchestrator.errors import Conflict, UsageError
from orchestrator.paths import Paths
from tests.control.conftest import TOKEN, Served, tcp_client, unix_client
from tests.control.memory_facade import MemoryFacade
from tests.control.raw import answer_of, ask, connected, request
from tests.waiting import until


def server(paths: Paths, **options: object) -> ControlServer:
    return ControlServer(MemoryFacade(), paths, version="0.0.test", **options)  # type: ignore[arg-type]


async def test_the_socket_is_for_its_group_only(served: Served) -> None:
    info = served.paths.control_socket.stat()
    assert info.st_mode & 0o777 == 0o660


async def test_the_group_gets_the_socket_when_root_makes_it(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "chown", lambda path, uid, gid: given.append((uid, gid)))
    bind_unix(paths.control_socket, "no-such-group-here").close()
    assert given == []
    bind_unix(paths.control_socket, grp.getgrgid(os.getgid()).gr_name).close()
    assert given == [(-1, os.getgid())]
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    bind_unix(paths.control_socket, grp.getgrgid(os.getgid()).gr_name).close()
    assert len(given) == 1


async def test_start_serves_and_stop_leaves_nothing(paths: Paths) -> None:
    control = server(paths, tcp=TcpAddress("localhost", 0), token=TOKEN)
    for _ in range(2):  # it can be started again
        await control.start()
        async with unix_client(paths) as client:
            assert (await client.get("/healthz")).status_code == 200
        port = control.tcp_port
        assert port is not None
        async with tcp_client(port) as client:
            assert (await client.get("/api/v1/version")).status_code == 200
        await control.stop(1.0)
        await control.stop(1.0)
        assert not paths.control_socket.exists()
        with pytest.raises(httpx.ConnectError):
            async with tcp_client(port) as client:
                await client.get("/healthz")
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_two_daemons_on_one_socket(served: Served) -> None:
    second = server(served.paths)
    with pytest.raises(Conflict, match="another daemon answers on") as caught:
        await second.start()
    assert "--state-dir" in (caught.value.hint or "")
    await second.stop(1.0)
    assert (await served.unix.get("/healthz")).status_code == 200  # the first one's socket is still there


async def test_the_socket_of_a_killed_daemon_is_replaced(paths: Paths) -> None:
    script = "import socket,os,sys; s=socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); os._exit(0)"
    subprocess.run([sys.executable, "-c", script, str(paths.control_socket)], check=True, timeout=20)
    assert paths.control_socket.is_socket()
    control = server(paths)
    await control.start()
    async with unix_client(paths) as client:
        assert (await client.get("/healthz")).status_code == 200
    await control.stop(1.0)


async def test_a_listener_whose_backlog_is_full_is_alive(paths: Paths) -> None:
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as waiting:
        busy.bind(str(paths.control_socket))
        busy.listen(0)
        waiting.connect(str(paths.control_socket))
        with pytest.raises(Conflict, match="another daemon answers"):
            await server(paths).start()


async def test_what_is_no_socket_is_left_alone(paths: Paths) -> None:
    paths.control_socket.write_text("precious")
    with pytest.raises(Conflict, match="is not a socket"):
        await server(paths).start()
    assert paths.control_socket.read_text() == "precious"


async def test_a_successors_socket_is_left_alone(paths: Paths) -> None:
    control = server(paths)
    await control.start()
    paths.control_socket.unlink()
    successor = server(paths)
    await successor.start()
    await control.stop(1.0)
    async with unix_client(paths) as client:
        assert (await client.get("/healthz")).status_code == 200
    await successor.stop(1.0)


@pytest.mark.parametrize("where", ["x" * 120, "missing/run"])
async def test_a_folder_that_cannot_hold_a_socket(paths: Paths, where: str) -> None:
    with pytest.raises(UsageError, match="cannot be made"):
        await server(dataclasses.replace(paths, run_dir=paths.run_dir / where)).start()


async def test_a_port_in_use_names_the_port_and_the_setting(served: Served, paths: Paths) -> None:
    other = dataclasses.replace(paths, run_dir=paths.run_dir / "other")
    other.run_dir.mkdir()
    second = server(other, tcp=TcpAddress("127.0.0.1", served.port), token=TOKEN)
    with pytest.raises(Conflict, match=f"port {served.port} on 127.0.0.1 is in use") as caught:
        await second.start()
    assert "[api] listen" in (caught.value.hint or "")
    assert caught.value.evidence == {"host": "127.0.0.1", "port": served.port}
    assert not other.control_socket.exists()  # nothing half started


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "example.org", ""])
async def test_nothing_leaves_the_machine_in_the_clear(paths: Paths, host: str) -> None:
    with pytest.raises(UsageError, match="not a loopback address"):
        await server(paths, tcp=TcpAddress(host, 0), token=TOKEN).start()
    assert not paths.control_socket.exists()


def test_tcp_needs_a_token(paths: Paths) -> None:
    with pytest.raises(ValueError, match="needs a token"):
        server(paths, tcp=TcpAddress("127.0.0.1", 0))


async def test_signals_are_left_to_the_daemon(paths: Paths) -> None:
    before = [signal.getsignal(which) for which in (signal.SIGINT, signal.SIGTERM)]
    control = server(paths)
    await control.start()
    assert [signal.getsignal(which) for which in (signal.SIGINT, signal.SIGTERM)] == before
    await control.stop(1.0)


async def test_a_request_in_progress_is_answered_within_the_limit(served: Served) -> None:
    served.facade.gate = asyncio.Event()
    draining = asyncio.create_task(served.unix.post("/api/v1/deployments/smollm2/drain"))
    await until(lambda: served.facade.gate_waiters == 1, 2)
    stopping = asyncio.create_task(served.server.stop(10.0))
    await until(lambda: not _accepts(served.paths.control_socket), 2, "nothing new is accepted")
    served.facade.gate.set()
    assert (await draining).status_code == 200
    async with asyncio.timeout(2):
        await stopping


async def test_a_request_beyond_the_limit_is_told(served: Served) -> None:
    served.facade.gate = asyncio.Event()
    draining = asyncio.create_task(served.unix.post("/api/v1/deployments/smollm2/drain"))
    await until(lambda: served.facade.gate_waiters == 1, 2)
    await served.server.stop(0.05)
    answer = await draining
    assert (answer.status_code, answer.json()["code"]) == (503, "stopping")
    assert served.facade.journal == []


async def test_stop_does_not_wait_for_idle_or_stuck_clients(served: Served) -> None:
    served.facade.endless_log = True
    socket_path = served.paths.control_socket
    async with connected(socket_path), connected(socket_path) as (_, stuck):
        stuck.transport.pause_reading()  # type: ignore[attr-defined]
        stuck.write(request(target="/api/v1/deployments/smollm2/logs?follow=true").encode())
        await until(lambda: served.facade.lines_made > 100, 2)
        async with asyncio.timeout(5):
            await served.server.stop(30.0)
    assert served.facade.open_iterators == 0


async def test_the_routing_table_is_for_the_gateways_user(paths: Paths) -> None:
    """Whoever may open the socket may operate; the engines' keys are for fewer."""
    control = server(paths, gateway_uids=frozenset({os.geteuid() + 1}))
    await control.start()
    try:
        answer = await ask(paths.control_socket, request(target="/api/v1/gateway/table"))
        assert answer.problem == (403, "not_the_gateway")
        assert (await ask(paths.control_socket, request(target="/api/v1/engines"))).status == 200
    finally:
        await control.stop(1.0)
    assert {0, os.geteuid()} <= default_gateway_uids(paths)


async def test_a_head_must_come_in_time(paths: Paths) -> None:
    control = server(paths, head_time=0.05)
    await control.start()
    try:
        async with connected(paths.control_socket) as (reader, _):
            async with asyncio.timeout(2):
                assert await reader.read() == b""
        async with connected(paths.control_socket) as (reader, writer):
            writer.write(request(target="/healthz").encode())
            assert (await answer_of(reader)).status == 200
            writer.write(b"GET /hea")  # a second one, begun and not finished
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await answer_of(reader)
    finally:
        await control.stop(1.0)


def test_it_serves_on_uvloop_as_the_daemon_does(paths: Paths) -> None:
    """Its transports and sockets are not asyncio's own: the peer's uid, the unix listener and the end of streams."""

    async def main() -> None:
        facade = MemoryFacade()
        control = ControlServer(facade, paths, version="0.0.test", tcp=TcpAddress("127.0.0.1", 0), token=TOKEN)
        await control.start()
        assert paths.control_socket.stat().st_mode & 0o777 == 0o660
        port = control.tcp_port
        assert port is not None
        assert (await ask(port, request(target="/api/v1/version"))).problem == (401, "token_missing")
        async with connected(paths.control_socket) as (reader, writer):
            writer.write(request(target="/api/v1/gateway/table").encode())
            assert b"event: table" in await asyncio.wait_for(reader.readuntil(b"}\n\n"), 5)
            assert facade.open_iterators == 1
        await until(lambda: facade.open_iterators == 0, 2, "the iterator closed")
        await control.stop(1.0)
        assert not paths.control_socket.exists()

    uvloop.run(main())


async def test_connections_are_counted(paths: Paths) -> None:
    control = server(paths, connections=2)
    await control.start()
    try:
        path = paths.control_socket
        async with connected(path), connected(path), connected(path) as (reader, _):
            answer = await answer_of(reader)
            assert answer.problem == (503, "too_many_connections")
            assert answer.headers["retry-after"] == "5"

        async def again() -> bool:
            try:
                return (await ask(paths.control_socket, request(target="/healthz"))).status == 200
            except OSError:
                return False

        await until(again, 2)
    finally:
        await control.stop(1.0)


def _accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True
