"""Listeners: uvicorn's HTTP protocol on asyncio servers of our own.

What uvicorn's own server does not do: a bound on the shutdown and on connections,
deadlines kept by one sweep a second, and a listening socket that is opened again when
the event loop lost it (uvloop closes it, silently, on errors of `accept` such as ENOMEM).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from pathlib import Path
from typing import Any, cast

from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.server import ServerState

from api.gateway import problem
from api.gateway.admission import Admission
from api.gateway.asgi import App
from api.gateway.guard import is_loopback
from api.gateway.heads import lines
from api.gateway.log import warning
from api.gateway.protocol import CarefulProtocol
from api.gateway.settings import Address
from orchestrator.clock import Clock
from orchestrator.errors import OutriderError

BACKLOG = 4096
CHECKED_AT_ONCE = 500
"""Connections: about half a millisecond."""
GONE_AFTER = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))
"""A machine that vanished without a word is noticed after two minutes, even while nothing is sent to it."""

_NO_SUCH_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class CannotListen(OutriderError):
    """An address or socket path cannot be had."""

    code = "cannot_listen"


class Listener:
    """One ASGI app on one address, for at most `most` connections."""

    def __init__(
        self, app: App, protocol: type[asyncio.Protocol], keep_alive_s: float, most: int | None = None
    ) -> None:
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
            timeout_keep_alive=int(keep_alive_s),  # for uvicorn's own protocol class; ours has `check`
        )
        config.load()
        self._make: Callable[[], asyncio.Protocol] = lambda: protocol(  # type: ignore[call-arg]
            config=config, server_state=self.state, app_state={}, _loop=asyncio.get_running_loop()
        )
        self._most = most
        self._servers: list[asyncio.Server] = []
        self._sockets: list[socket.socket] = []
        self._open: Callable[[], Awaitable[None]] | None = None

    async def tcp(self, address: Address, setting: str) -> Address:
        """Listen on TCP; the address, with the port that was taken. Raises `CannotListen`."""
        port = address.port

        async def listen() -> None:
            nonlocal port
            sockets = await _tcp_sockets(address.host, port)
            port = sockets[0].getsockname()[1]
            await self._serve(sockets)

        try:
            await listen()
        except OSError as error:
            reason = str(error) if error.errno is None else os.strerror(error.errno).lower()
            raise CannotListen(
                f"cannot listen on {address}: {reason}",
                hint=f"free the port, or set another one with [gateway] {setting}",
                evidence={"address": str(address)},
            ) from error
        self._open = listen
        return Address(self._sockets[0].getsockname()[0], port)

    async def unix(self, path: Path) -> None:
        """Listen on a unix socket of mode 0600, in place of one that was left behind. Raises `CannotListen`."""

        async def listen() -> None:
            await self._serve([_unix_socket(path)])

        try:
            await listen()
        except OSError as error:
            raise CannotListen(f"cannot listen on {path}: {error.strerror or error}") from error
        self._open = listen

    async def _serve(self, sockets: list[socket.socket]) -> None:
        loop = asyncio.get_running_loop()
        self._sockets = sockets
        for sock in sockets:
            if sock.family == socket.AF_UNIX:
                server = await loop.create_unix_server(self._accept, sock=sock, backlog=64)
            else:
                server = await loop.create_server(self._accept, sock=sock, backlog=BACKLOG)
            self._servers.append(server)

    def _accept(self) -> asyncio.Protocol:
        if self._most is not None and len(self.state.connections) >= self._most:
            return _TurnedAway(self._most)
        return self._make()

    async def check(self, now: float) -> None:
        """Keep the connections' deadlines, and listen again if the sockets were lost. `now`: monotonic seconds."""
        for number, connection in enumerate(list(self.state.connections)):
            if isinstance(connection, CarefulProtocol):
                _check(connection, now)
            if number % CHECKED_AT_ONCE == CHECKED_AT_ONCE - 1:
                await asyncio.sleep(0)  # streams go on meanwhile
        if self._open is None or all(sock.fileno() >= 0 for sock in self._sockets):
            return
        self._close_servers()
        try:
            await self._open()
        except OSError as error:
            warning("cannot_listen_again", detail=str(error))
        else:
            warning("listening_again")

    def stop_accepting(self) -> None:
        """Take no new connections; idle ones are closed, busy ones end with their answer."""
        self._open = None
        self._close_servers()
        for connection in list(self.state.connections):
            connection.shutdown()

    def _close_servers(self) -> None:
        for server in self._servers:
            server.close()
        self._servers.clear()

    async def finish(self, limit: float) -> int:
        """Wait until every connection is gone, at most `limit` seconds; how many are left."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                while self.state.connections:  # noqa: ASYNC110 - uvicorn tells nobody when one ends
                    await asyncio.sleep(0.02)
        return len(self.state.connections)

    def abort(self) -> None:
        """Cut every connection that is left."""
        for connection in list(self.state.connections):
            connection.transport.abort()


def _check(connection: CarefulProtocol, now: float) -> None:
    try:
        connection.check(now)
    except Exception:
        # A mistake of ours may cost one connection, never the gateway.
        logging.getLogger(__name__).exception("a connection could not be checked")
        connection.transport.abort()


class _TurnedAway(asyncio.Protocol):
    """A connection too many: it is told so, and closed."""

    def __init__(self, limit: int) -> None:
        self._limit = limit

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        reason = problem.too_many_connections(self._limit)
        body = reason.body()
        head = lines([*reason.headers(), (b"content-length", b"%d" % len(body)), (b"connection", b"close")])
        made = cast(asyncio.Transport, transport)
        made.write(STATUS_LINE[reason.status] + head + b"\r\n" + body)
        made.close()


async def _tcp_sockets(host: str, port: int) -> list[socket.socket]:
    """Bound sockets for every address of `host`, all on one port. Raises `OSError`."""
    found = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE, family=socket.AF_UNSPEC
    )
    made: list[socket.socket] = []
    failure: OSError | None = None
    for family, kind, _, _, address in dict.fromkeys(found):
        try:
            sock = _bound(family, kind, (address[0], port, *address[2:]))
        except OSError as error:
            if error.errno in _NO_SUCH_ADDRESS:  # "localhost" names ::1 on machines without IPv6, too
                failure = error
                continue
            for other in made:
                other.close()
            raise
        port = sock.getsockname()[1]
        made.append(sock)
    if not made and failure is not None:
        raise failure
    return made


def _bound(family: int, kind: int, address: tuple[Any, ...]) -> socket.socket:
    sock = socket.socket(family, kind)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # what is accepted inherits these
        for option, value in GONE_AFTER:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


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


async def every_second(admission: Admission, listeners: list[Listener], clock: Clock) -> None:
    """Refresh the Date header and check every connection, until cancelled."""
    while True:
        date = _date(clock.wall())
        admission.date = b"date: %b\r\n" % date if date else b""
        for listener in listeners:
            listener.state.default_headers = [(b"date", date)] if date else []
            await listener.check(time.monotonic())
        await asyncio.sleep(1.0)


def _date(wall: float) -> bytes:
    """The Date header's value; empty while the clock says a year that it cannot."""
    try:
        return formatdate(wall, usegmt=True).encode()
    except (ValueError, OverflowError, OSError):
        return b""


def warn_if_public(address: Address, setting: str) -> None:
    """Say aloud that an address is not loopback: there is no TLS here and no client key."""
    if not is_loopback(address.host):
        warning("listening_beyond_loopback", setting=setting, address=str(address))
