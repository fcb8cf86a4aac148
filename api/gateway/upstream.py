"""Connections to engines: one HTTP/1.1 exchange at a time, kept alive and pooled per engine.

A connection hands what it parses to its *user* by plain calls, without a task or a
future per request: that is what keeps a relayed chunk cheap. The user is told of
every end exactly once, by `upstream_data` with `done`, or by `upstream_lost`.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections import deque
from typing import Protocol, cast

import httptools

from orchestrator.engine_socket import opened

IDLE_LIMIT = 4.0
"""Seconds. llama.cpp closes an idle connection after 5.0 s."""
MOST_REQUESTS = 99
"""Per connection. llama.cpp closes after exactly 100."""
CONNECT_DEADLINE = 5.0
"""Seconds, retries while the engine's queue of new connections is full included."""
LONGEST_HEAD = 64 * 1024
"""Bytes of a response's head."""
CROWDED_AFTER = 0.1
"""Seconds without a first byte after which idle connections are given up.

llama.cpp's HTTP server spends a thread on each open connection, idle ones too, so a
waiting request may wait for a thread that an idle connection of ours holds. Measured
with a server of two slots: 40 requests at once took 25 s without this, 0.1 s with it.
"""
MOST_INTERIMS = 16
"""1xx responses before the real one."""
SWITCHING = 101
"""Nobody asks an engine for another protocol."""
_END = b"\r\n\r\n"
_BUSY = (errno.EAGAIN, errno.EWOULDBLOCK)
OURS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
"""Errors of a dial that say nothing about the engine: this process or this machine has run out of something."""


class User(Protocol):
    """Who uses a connection for one exchange."""

    def upstream_data(self, connection: Connection) -> None:
        """The head is complete, and there may be body (`take`) or the end (`done`)."""

    def upstream_lost(self, connection: Connection, detail: str) -> None:
        """The connection ended before the response did."""


class Connection(asyncio.Protocol):
    """One connection to one engine."""

    __slots__ = (
        "_barren",
        "_interims",
        "_parser",
        "_parts",
        "_pool",
        "_read_paused",
        "closed",
        "done",
        "head",
        "head_done",
        "idle_since",
        "keep",
        "served",
        "status",
        "transport",
        "user",
    )

    transport: asyncio.Transport

    def __init__(self, pool: Pool | None) -> None:
        self._pool = pool
        self._parser = httptools.HttpResponseParser(self)
        self.user: User | None = None
        self.closed = False
        self.served = 0
        self.idle_since = 0.0
        self._read_paused = False

    # the user's side

    def send(self, user: User, head: bytes, body: bytes) -> None:
        """Begin an exchange: write a request and hand its response to `user`."""
        self.user = user
        self._parts: list[bytes] = []
        self._interims = 0
        self._barren = 0
        self.status = 0
        self.head = b""
        self.head_done = False
        self.done = False
        self.keep = False
        self.served += 1
        if self._pool is not None:
            self._pool.waiting[self] = time.monotonic()
        if len(body) < 65536:
            self.transport.write(head + body)
        else:
            self.transport.writelines((head, body))

    def take(self) -> bytes:
        """The body that came since the last call."""
        parts = self._parts
        if not parts:
            return b""
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        self._parts = []
        return body

    def release(self) -> None:
        """End a finished exchange; the connection goes back to the pool if it can be used again."""
        self.user = None
        self.resume()
        if (
            self._pool is not None
            and self.keep
            and not self.closed
            and self.served < MOST_REQUESTS
            and self.transport.get_write_buffer_size() == 0
        ):
            self._pool.put(self)
        else:
            self.close()

    def abort(self) -> None:
        """Drop the connection at once: this is what tells an engine that nobody listens any more."""
        self.user = None
        if self._pool is not None:
            self._pool.waiting.pop(self, None)
        if not self.closed:
            self.transport.abort()

    def close(self) -> None:
        """Close a connection that nobody uses."""
        if not self.closed:
            self.transport.close()

    def pause(self) -> None:
        if not self._read_paused and not self.closed:
            self._read_paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        if self._read_paused:
            self._read_paused = False
            if not self.closed:
                self.transport.resume_reading()

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are not subclasses
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        user = self.user
        if user is None:  # nobody asked: not a connection to use again
            self.abort()
            return
        in_head = not self.head_done
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self.done:
                self._fail(f"it does not speak HTTP ({error})")
                return
            self.keep = False  # the answer is whole; what follows it is nobody's
        if in_head:
            if not self._take_head(data):
                return
        elif not self._parts and not self.done:
            self._count_barren(len(data))
            return
        user.upstream_data(self)

    def _take_head(self, data: bytes) -> bool:
        """Keep what came of the head; whether it is whole and can be used."""
        self.head = head = self.head + data if self.head else data
        if self._interims > MOST_INTERIMS:
            self._fail("it announces an answer without end")
            return False
        if self.head_done:
            for _ in range(self._interims):
                head = head.partition(_END)[2]
            self.head = head = head.partition(_END)[0]
        if len(head) > LONGEST_HEAD:
            self._fail("its response's head is too long")
        elif not self.head_done:
            return False
        elif not 200 <= self.status < 600:
            self._fail(f"it answered with the status {self.status}")
        else:
            return True
        return False

    def _count_barren(self, size: int) -> None:
        """Chunk sizes, their extensions and trailers are held by the parser until they end: not without end."""
        self._barren += size
        if self._barren > LONGEST_HEAD:
            self._fail("it sends framing without a body")

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        user = self.user
        if self._pool is not None:
            self._pool.forget(self)
        if user is None:
            return
        if exc is None and self.head_done and not self.done and self._ends_by_close():
            self.done = True
            user.upstream_data(self)
            return
        self.user = None
        user.upstream_lost(self, "it closed the connection" if exc is None else str(exc) or type(exc).__name__)

    # the parser's side

    def on_headers_complete(self) -> None:
        if self.done:  # a second answer to one request
            self.keep = False
            return
        status = self._parser.get_status_code()
        if 100 <= status < 200 and status != SWITCHING:  # 1xx come before the real head
            self._interims += 1
            return
        self.status = status
        self.keep = self._parser.should_keep_alive()
        if self._pool is not None:
            self._pool.waiting.pop(self, None)
        self.head_done = True

    def on_body(self, body: bytes) -> None:
        if not self.done:
            self._parts.append(body)
            self._barren = 0

    def on_message_complete(self) -> None:
        if not self.head_done:  # the end of a 1xx
            return
        self.done = True

    def _fail(self, detail: str) -> None:
        user = self.user
        self.abort()
        if user is not None:
            user.upstream_lost(self, detail)

    def _ends_by_close(self) -> bool:
        head = self.head.lower()
        return b"\r\ncontent-length:" not in head and b"\r\ntransfer-encoding:" not in head


class Pool:
    """Idle connections to one engine, and how to open new ones."""

    def __init__(self, *, path: str | None = None, port: int | None = None) -> None:
        """A unix socket's path, or a port of 127.0.0.1."""
        assert (path is None) != (port is None)
        self._path = path
        self._port = port or 0
        self._idle: deque[Connection] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.waiting: dict[Connection, float] = {}
        """Connections whose request has no first byte yet, oldest first, and since when."""

    @property
    def idle(self) -> int:
        return len(self._idle)

    def take(self) -> Connection | None:
        """The connection used last, if it will still be open at the other end."""
        idle = self._idle
        while idle:
            connection = idle.pop()
            if connection.closed:
                continue
            if time.monotonic() - connection.idle_since < IDLE_LIMIT:
                return connection
            connection.close()
        return None

    def put(self, connection: Connection) -> None:
        now = time.monotonic()
        if self._crowded(now):
            connection.close()
            return
        connection.idle_since = now
        self._idle.append(connection)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(IDLE_LIMIT / 16, self._sweep)

    def forget(self, connection: Connection) -> None:
        """The connection is gone."""
        self.waiting.pop(connection, None)
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        """Close the idle connections; those in use go on."""
        while self._idle:
            self._idle.pop().close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def dial(self, deadline: float = CONNECT_DEADLINE) -> Connection:
        """A new connection. Raises `OSError` (`TimeoutError` after `deadline` seconds)."""
        loop = asyncio.get_running_loop()
        pause = 0.002
        async with asyncio.timeout(deadline):
            while True:
                try:
                    if self._path is not None:
                        with opened(self._path) as address:
                            _, connection = await loop.create_unix_connection(lambda: Connection(self), address)
                    else:
                        _, connection = await loop.create_connection(lambda: Connection(self), "127.0.0.1", self._port)
                except OSError as error:
                    # A unix socket whose backlog is full refuses at once instead of making the caller wait.
                    if error.errno not in _BUSY:
                        raise
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, 0.05)
                else:
                    return connection

    def _crowded(self, now: float) -> bool:
        for since in self.waiting.values():
            return now - since > CROWDED_AFTER
        return False

    def _sweep(self) -> None:
        """Close what has been idle too long, oldest first; everything while the engine is crowded."""
        self._timer = None
        now = time.monotonic()
        crowded = self._crowded(now)
        while self._idle and (crowded or now - self._idle[0].idle_since >= IDLE_LIMIT):
            self._idle.popleft().close()
        if self._idle:
            self._timer = asyncio.get_running_loop().call_later(IDLE_LIMIT / 16, self._sweep)
