"""Listeners: uvicorn's HTTP protocol on asyncio servers of our own, with a shutdown that has a bound."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path

from uvicorn import Config
from uvicorn.server import ServerState

from api.gateway.admission import Admission
from api.gateway.asgi import App
from api.gateway.log import warning
from api.gateway.settings import Address
from orchestrator.clock import Clock
from orchestrator.errors import OutriderError

KEEP_ALIVE = 75
"""Seconds an idle client connection stays open: longer than clients' pools keep theirs."""
BACKLOG = 4096


class CannotListen(OutriderError):
    """An address or socket path cannot be had."""

    code = "cannot_listen"


class Listener:
    """One ASGI app on one address."""

    def __init__(self, app: App, protocol: type[asyncio.Protocol]) -> None:
        self.state = ServerState()
        config = Config(
            app,
            http=protocol,
            loop="none",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE,
        )
        config.load()
        self._make: Callable[[], asyncio.Protocol] = lambda: protocol(  # type: ignore[call-arg]
            config=config, server_state=self.state, app_state={}, _loop=asyncio.get_running_loop()
        )
        self._server: asyncio.Server | None = None

    async def tcp(self, address: Address, setting: str) -> Address:
        """Listen on TCP; the address, with the port that was taken. Raises `CannotListen`."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._make, address.host, address.port, backlog=BACKLOG)
        except OSError as error:
            reason = str(error) if error.errno is None else os.strerror(error.errno).lower()
            raise CannotListen(
                f"cannot listen on {address}: {reason}",
                hint=f"free the port, or set another one with [gateway] {setting}",
                evidence={"address": str(address)},
            ) from error
        host, port, *_ = self._server.sockets[0].getsockname()
        return Address(host, port)

    async def unix(self, path: Path) -> None:
        """Listen on a unix socket of mode 0600, in place of one that was left behind. Raises `CannotListen`."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_unix_server(self._make, sock=_unix_socket(path), backlog=64)
        except OSError as error:
            raise CannotListen(f"cannot listen on {path}: {error.strerror or error}") from error

    def stop_accepting(self) -> None:
        """Take no new connections; idle ones are closed, busy ones end with their answer."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self.state.connections):
            connection.shutdown()

    async def finish(self, limit: float) -> int:
        """Wait until every connection is gone, at most `limit` seconds; how many had to be cut."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                while self.state.connections:  # noqa: ASYNC110 - uvicorn tells nobody when one ends
                    await asyncio.sleep(0.02)
        left = list(self.state.connections)
        for connection in left:
            connection.transport.abort()
        return len(left)


def _unix_socket(path: Path) -> socket.socket:
    """A bound unix socket of mode 0600, never for a moment of another."""
    path.unlink(missing_ok=True)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        made.bind(str(path))
    except OSError:
        made.close()
        raise
    finally:
        os.umask(mask)
    return made


async def keep_date(admission: Admission, listeners: list[Listener], clock: Clock) -> None:
    """Refresh the Date header once a second, until cancelled."""
    while True:
        date = formatdate(clock.wall(), usegmt=True).encode()
        admission.date = b"date: %b\r\n" % date
        for listener in listeners:
            listener.state.default_headers = [(b"date", date)]
        await asyncio.sleep(1.0)


def warn_if_public(address: Address, setting: str) -> None:
    """Say aloud that an address is not loopback: there is no TLS here and no client key."""
    if address.host not in {"127.0.0.1", "::1", "localhost"}:
        warning("listening_beyond_loopback", setting=setting, address=str(address))
