"""The control API's listeners: the unix socket always, TCP where the configuration says so.

uvicorn does HTTP; what it does as a *program* is replaced here: it takes no signals, it
never calls `sys.exit`, the sockets are bound (and refused with a next step) before it starts,
and whether it serves is known when `ControlServer.start` returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import socket
from collections.abc import Collection, Iterator
from typing import Any

import uvicorn

from api.control.app import create_app
from api.control.listeners import TcpAddress, UnixListener, bind_tcp, bind_unix
from api.control.protocol import CONNECTIONS, HEAD_LIMIT, HEAD_TIME, ControlProtocol
from api.control.sse import Streams
from api.control.token import digest
from orchestrator.facade import Facade
from orchestrator.paths import Paths

log = logging.getLogger("outrider.api")

KEEP_ALIVE = 30
"""Seconds that an idle connection is kept."""
LAST_WORDS = 1.0
"""Seconds for tasks to notice that their connection is gone, after the limit of a stop."""


class ControlServer:
    """The control API of one daemon, on up to two listeners.

    `tcp` is a loopback address and port (port 0: a free one, see `tcp_port`) or None for the unix
    socket only; with it, `token` is what TCP clients must send. `group` (a name or number) gets the unix
    socket when the daemon is root and the group exists; by default the run folder's group.
    """

    def __init__(
        self,
        facade: Facade,
        paths: Paths,
        *,
        version: str,
        tcp: TcpAddress | None = None,
        token: str | None = None,
        group: str | int | None = None,
        gateway_uids: Collection[int] | None = None,
        head_time: float = HEAD_TIME,
        connections: int = CONNECTIONS,
    ) -> None:
        if tcp is not None and token is None:
            raise ValueError("a TCP listener needs a token")
        self._facade = facade
        self._paths = paths
        self._version = version
        self._tcp = tcp
        self._digest = None if token is None else digest(token)
        self._group = group
        self._gateway_uids = default_gateway_uids(paths) if gateway_uids is None else frozenset(gateway_uids)
        self._protocol = functools.partial(ControlProtocol, head_time=head_time, connections=connections)
        self._streams = Streams()
        self._listeners: list[_Listener] = []
        self._unix: UnixListener | None = None
        self._bound: list[socket.socket] = []
        self.tcp_port: int | None = None

    @property
    def open_streams(self) -> int:
        """How many event streams are being read."""
        return self._streams.open

    async def start(self) -> None:
        """Bind (local, does not wait) and serve. Both listeners accept when this returns; after an error neither does.

        Raises `Conflict` when somebody answers on the socket or the port is in use, and
        `UsageError` for an address that is not this machine's, or not a loopback address.
        """
        if self._listeners:
            raise RuntimeError("the control API is already started")
        self._streams.closing.clear()
        self._unix = bind_unix(
            self._paths.control_socket, self._run_folders_group() if self._group is None else self._group
        )
        try:
            listeners = [_Listener(self._app(trusted=True), self._unix.socket, self._protocol)]
            if self._tcp is not None:
                bound = bind_tcp(self._tcp)
                self._bound.append(bound)
                self.tcp_port = int(bound.getsockname()[1])
                listeners.append(_Listener(self._app(trusted=False), bound, self._protocol))
            for listener in listeners:
                await listener.start()
                self._listeners.append(listener)
        except BaseException:
            await self.stop(0.0)
            raise
        log.info("the control API listens on %s%s", self._paths.control_socket, self._tcp_text())

    async def stop(self, limit: float) -> None:
        """Accept nothing more, end event streams at once, give other requests `limit` seconds. Idempotent."""
        self._streams.closing.set()
        listeners, self._listeners = self._listeners, []
        await asyncio.gather(*(listener.stop(limit) for listener in listeners))
        for bound in self._bound:
            bound.close()  # again, for one that never came to serve
        self._bound.clear()
        if self._unix is not None:
            self._unix.close()
            self._unix = None

    def _app(self, *, trusted: bool) -> Any:
        return create_app(
            self._facade,
            version=self._version,
            trusted=trusted,
            token_digest=None if trusted else self._digest,
            gateway_uids=self._gateway_uids,
            streams=self._streams,
        )

    def _run_folders_group(self) -> int | None:
        with contextlib.suppress(OSError):
            return self._paths.run_dir.stat().st_gid
        return None

    def _tcp_text(self) -> str:
        return "" if self._tcp is None else f" and on {self._tcp.host}, port {self.tcp_port}"


def default_gateway_uids(paths: Paths) -> frozenset[int]:
    """Root, the user of this process, and whose the gateway's folder is."""
    uids = {0, os.geteuid()}
    with contextlib.suppress(OSError):
        uids.add(paths.gateway_dir.stat().st_uid)
    return frozenset(uids)


class _Listener:
    """One uvicorn server on one bound socket."""

    def __init__(self, app: Any, bound: socket.socket, protocol: Any) -> None:
        config = uvicorn.Config(
            app,
            http=ControlProtocol,
            ws="none",
            loop="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # its warnings are about clients; those go to our own log at debug
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE,
            h11_max_incomplete_event_size=HEAD_LIMIT,
        )
        self._server = _Server(config, bound, protocol)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._server.serve(), name="control api")
        serving = asyncio.create_task(self._server.serving.wait())
        try:
            await asyncio.wait({self._task, serving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            serving.cancel()
        if self._task.done():
            await self._task  # raises what went wrong
            raise RuntimeError("uvicorn ended before it served")

    async def stop(self, limit: float) -> None:
        if self._task is None:
            return
        self._server.end(limit)
        await self._task
        await self._server.hang_up()


class _Server(uvicorn.Server):
    """uvicorn's server without its command-line manners."""

    def __init__(self, config: uvicorn.Config, bound: socket.socket, protocol: Any) -> None:
        super().__init__(config)
        self._bound = bound
        self._protocol = protocol
        self._ending = asyncio.Event()
        self._limit = 0.0
        self.serving = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the daemon's."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve on the bound socket."""
        loop = asyncio.get_running_loop()
        self.lifespan = self.config.lifespan_class(self.config)

        def protocol() -> asyncio.Protocol:
            made: asyncio.Protocol = self._protocol(
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state, _loop=loop
            )
            return made

        serve = loop.create_unix_server if self._bound.family == socket.AF_UNIX else loop.create_server
        self.servers = [await serve(protocol, sock=self._bound, backlog=128)]
        self.started = True

    async def main_loop(self) -> None:
        """Refresh the Date header once a second until the end; uvicorn would look ten times a second."""
        while not self._ending.is_set():
            await self.on_tick(0)
            self.serving.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._ending.wait()

    def end(self, limit: float) -> None:
        """Leave the main loop; `shutdown` follows."""
        self._limit = limit
        self._ending.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, let requests end within the limit, cancel the rest."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        tasks = set(self.server_state.tasks)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self._limit)
            for task in late:
                task.cancel()
            if late:
                log.warning("the control API stops with %d requests unanswered", len(late))
                await asyncio.wait(late, timeout=LAST_WORDS)

    async def hang_up(self) -> None:
        """Drop what is still connected: readers that take nothing, senders that never end."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        for server in self.servers:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORDS):
                    await server.wait_closed()
