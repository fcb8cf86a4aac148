"""Real servers on sockets of their own, and clients for both listeners."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from api.control.listeners import TcpAddress
from api.control.server import ControlServer
from orchestrator.facade import Facade
from orchestrator.paths import Paths
from tests.control.memory_facade import MemoryFacade

TOKEN = "t0ken-" + "x" * 40


@dataclass
class Served:
    """A running control API with its facade and a client for each listener."""

    facade: MemoryFacade
    server: ControlServer
    paths: Paths
    unix: httpx.AsyncClient
    tcp: httpx.AsyncClient
    port: int


@pytest.fixture
def paths() -> Iterator[Paths]:
    """Folders with a short name: a unix socket's path ends at 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="or-ctl-") as name:
        folder = Path(name)
        yield Paths(folder / "config", folder, folder)


@pytest.fixture
async def served(paths: Paths) -> AsyncIterator[Served]:
    facade = MemoryFacade()
    checked: Facade = facade  # mypy: it keeps the protocol
    server = ControlServer(checked, paths, version="0.0.test", tcp=TcpAddress("127.0.0.1", 0), token=TOKEN)
    await server.start()
    port = server.tcp_port
    assert port is not None
    try:
        async with unix_client(paths) as unix, tcp_client(port) as tcp:
            yield Served(facade, server, paths, unix, tcp, port)
    finally:
        await server.stop(2.0)


def unix_client(paths: Paths) -> httpx.AsyncClient:
    transport = httpx.AsyncHTTPTransport(uds=str(paths.control_socket), verify=False)  # no TLS: loading CAs takes 20 ms
    return httpx.AsyncClient(transport=transport, base_url="http://outrider", timeout=10, trust_env=False)


def tcp_client(port: int, token: str | None = TOKEN) -> httpx.AsyncClient:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    return httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=10, trust_env=False, verify=False
    )
