"""Talking to one engine: health, one completion, counters. Over its unix socket or loopback port.

httpx is the control plane's client; traffic never passes here. Every call has a deadline, and
what an engine answers is hostile until parsed: bounded in size, checked in shape.
"""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

import httpcore
import httpx

from orchestrator.engine_socket import NotASocket, opened
from orchestrator.errors import EngineFailed

T = TypeVar("T")
LARGEST_ANSWER = 4 << 20
"""Bytes. /metrics of vLLM is some 200 kB; nothing here has a reason to be larger."""
SLACK = 0.25
"""Seconds beyond its deadline that a whole answer may take. httpx's own deadlines are of one read each, and tell more
of what was waited for; an answer that comes byte by byte passes none of them."""
LARGE = 256 << 10
"""Bytes from which on an answer is read beside the event loop: 4 MB of counters take 1.5 s."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and body of one answer."""

    status: int
    body: bytes

    async def read(self, parse: Callable[[bytes], T]) -> T:
        """What `parse` makes of the body, however large it is."""
        return parse(self.body) if len(self.body) < LARGE else await asyncio.to_thread(parse, self.body)

    def json(self) -> Any:
        """The body as JSON; None when it is none, or nested so deeply that nobody means it."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    @property
    def snippet(self) -> str:
        """The start of the body, for an error message."""
        return self.body[:300].decode("utf-8", "replace")


_NOBODY = frozenset({errno.ECONNREFUSED, errno.ENOENT})
_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EACCES, errno.EPERM})


def _errno(error: BaseException | None) -> int | None:
    """The kernel's own number, however often it was wrapped; None where there is none (a deadline)."""
    while error is not None:
        if isinstance(error, OSError) and error.errno is not None:
            return error.errno
        error = error.__cause__ or error.__context__
    return None


class EngineUnreachable(EngineFailed):
    """Nobody answers on the engine's socket or port, or not in time.

    `busy` is when somebody listens and is only slow, `connected` when it came to a connection at all. `refused` is
    when the kernel says that nobody listens, `ours` when it was this process that could not ask: it says nothing of
    the engine.
    """

    def __init__(
        self, detail: str, *, busy: bool = False, connected: bool = True, refused: bool = False, ours: bool = False
    ) -> None:
        super().__init__("engine_unreachable", detail)
        self.busy = busy
        self.connected = connected
        self.refused = refused
        self.ours = ours


class SocketReplaced(EngineUnreachable):
    """The engine put something else in its socket's place. No engine does that by itself, and waiting does not help."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.code = "engine_socket_replaced"
        self.hint = (
            "it may have been taken over: look at `outrider logs MODEL` and at where its image and weights are from"
        )


class EngineClient:
    """One engine's HTTP client. Use as an async context manager, or `close` it."""

    def __init__(self, *, socket: str | None, port: int | None, key: str, timeout: float) -> None:
        if (socket is None) == (port is None):
            raise ValueError("an engine has a socket or a port")
        self._socket = socket is not None
        self._timeout = timeout
        self._http = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(retries=0) if socket is None else _transport(socket),
            base_url="http://engine" if socket else f"http://127.0.0.1:{port}",
            headers={"authorization": f"Bearer {key}"},
            timeout=timeout,
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def get(self, path: str, *, timeout: float | None = None) -> Answer:
        """GET; raises `EngineUnreachable`."""
        return await self._call("GET", path, None, timeout)

    async def post(self, path: str, body: dict[str, Any], *, timeout: float | None = None) -> Answer:
        """POST JSON; raises `EngineUnreachable`."""
        return await self._call("POST", path, body, timeout)

    async def _call(self, method: str, path: str, body: dict[str, Any] | None, timeout: float | None) -> Answer:
        limit = self._timeout if timeout is None else timeout
        try:
            async with (
                asyncio.timeout(limit + SLACK),
                self._http.stream(method, path, json=body, timeout=httpx.Timeout(limit)) as response,
            ):
                parts: list[bytes] = []
                size = 0
                async for part in response.aiter_bytes():
                    parts.append(part)
                    size += len(part)
                    if size > LARGEST_ANSWER:
                        raise EngineUnreachable(f"{method} {path} answered more than {LARGEST_ANSWER} bytes")
                return Answer(response.status_code, b"".join(parts))
        except NotASocket as error:
            raise SocketReplaced(str(error)) from error
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            # a full backlog of a unix socket is a timeout too: there somebody listens
            busy = self._socket and isinstance(error, httpx.ConnectTimeout)
            text = f"{method} {path}: {type(error).__name__} {error}".rstrip()
            why = _errno(error)
            raise EngineUnreachable(
                text, busy=busy, connected=False, refused=why in _NOBODY, ours=why in _OURS
            ) from error
        except (httpx.TimeoutException, TimeoutError) as error:
            raise EngineUnreachable(f"{method} {path}: no answer in time", busy=True) from error
        except httpx.HTTPError as error:
            raise EngineUnreachable(f"{method} {path}: {type(error).__name__} {error}".rstrip()) from error


class _NoFollow(httpcore.AnyIOBackend):
    """Connects to a unix socket and never to what a link in its place names."""

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            with opened(path) as address:
                return await super().connect_unix_socket(address, timeout, socket_options)
        except NotASocket:
            raise
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error


def _transport(socket: str) -> httpx.AsyncHTTPTransport:
    """httpx's transport over this socket. How to connect can only be said to the pool below it."""
    transport = httpx.AsyncHTTPTransport(retries=0)
    transport._pool = httpcore.AsyncConnectionPool(uds=socket, retries=0, network_backend=_NoFollow())
    return transport
