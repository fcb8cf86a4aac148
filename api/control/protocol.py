"""HTTP/1.1 for the control API: uvicorn's h11 protocol with limits that it leaves to others.

h11 rather than httptools: it bounds the size of a request's head (uvicorn's httptools
protocol does not), and refuses a missing or doubled Host. Added here: a time for the
head, a bound on connections, problems instead of plain text, and for the layers above
the peer's uid and a way to drop the connection (`scope["state"]`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from api.control.problems import MEDIA_TYPE, Problem, problem

HEAD_LIMIT = 32 * 1024
"""Bytes of a request's head, and of one incomplete piece of its body."""
HEAD_TIME = 10.0
"""Seconds for a request's head, from the first byte of it (for the first one: from the connection)."""
CONNECTIONS = 512
"""At once, on each listener. Each costs a file descriptor and some 20 KiB."""
log = logging.getLogger("outrider.api")


class ControlProtocol(H11Protocol):
    """One connection."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        head_time: float = HEAD_TIME,
        connections: int = CONNECTIONS,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._head_time = head_time
        self._most = connections
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, "peer_uid": peer_uid(transport), "abort": transport.abort}
        if len(self.connections) > self._most:
            self._refuse(problem(503, "too_many_connections", "too many connections are open", retryable=True))
            return
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._between_requests and not self.transport.is_closing():
            self._watch_head()
        else:
            self._unwatch_head()

    def send_400_response(self, msg: str) -> None:
        """What h11 could not make sense of. Never written into a response that has begun."""
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.abort()
            return
        self._refuse(problem(400, "bad_request", "this is not a valid HTTP/1.1 request"))

    @property
    def _between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _watch_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._head_time, self._head_is_late)

    def _unwatch_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._between_requests and not self.transport.is_closing():
            log.debug("a connection was closed: no whole request head in %.0f s", self._head_time)
            self.transport.abort()

    def _refuse(self, what: Problem) -> None:
        """Answer without the application, and close."""
        retry = b"" if what.retry_after is None else b"retry-after: %d\r\n" % what.retry_after
        self.transport.write(
            b"HTTP/1.1 %d %s\r\ncontent-type: %s\r\ncontent-length: %d\r\n%sconnection: close\r\n\r\n%s"
            % (what.status, what.title.encode(), MEDIA_TYPE.encode(), len(what.body), retry, what.body)
        )
        self.transport.close()


def peer_uid(transport: asyncio.BaseTransport) -> int | None:
    """The uid at the other end of a unix socket, from the kernel; None for TCP."""
    raw: socket.socket | None = transport.get_extra_info("socket")
    if raw is None or raw.family != socket.AF_UNIX:
        return None
    _, uid, _ = struct.unpack("3i", raw.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(uid)
