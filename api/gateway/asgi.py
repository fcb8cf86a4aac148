"""What the gateway's ASGI apps share: types, answers, bodies with a limit, and a relay's responder."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from api.gateway import problem
from api.gateway.admission import Bodies
from api.gateway.heads import pairs
from api.gateway.problem import Problem

if TYPE_CHECKING:
    from api.gateway.relay import Relay

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

NO_BODY = frozenset((204, 304))
"""Statuses whose answers have no body, and say nothing of its length."""
HIGH_WATER = 64 * 1024
"""Bytes queued for a client above which the engine is read no further."""
DRAIN_LIMIT_S = 2.0
"""Seconds for which the rest of a refused body is read and dropped, so that the client gets to see the refusal."""


async def answer(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    """One whole response."""
    headers = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def answer_json(send: Send, document: object, status: int = 200) -> None:
    await answer(send, status, [problem.JSON], json.dumps(document).encode())


async def answer_problem(send: Send, reason: Problem) -> None:
    await answer(send, reason.status, reason.headers(), reason.body())


@dataclass(frozen=True, slots=True)
class Refusal:
    """A body that is not taken; `more`: the client still sends it."""

    reason: Problem
    more: bool = True


async def read_body(scope: Scope, receive: Receive, limit: int, bodies: Bodies) -> bytes | Refusal | None:
    """The request's body, taken from `bodies`; what is wrong with it, or None when the client left."""
    for name, value in scope["headers"]:
        if name == b"content-length" and int(value) > limit:
            return Refusal(problem.too_large(limit))
    parts = []
    size = 0
    whole = False
    try:
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return None
            part: bytes = message.get("body", b"")
            more = message.get("more_body", False)
            if size + len(part) > limit:
                return Refusal(problem.too_large(limit), more)
            if not bodies.take(len(part)):
                return Refusal(problem.bodies_full(bodies.limit), more)
            size += len(part)
            parts.append(part)
            if not more:
                body = b"".join(parts)
                whole = True
                return body
    finally:
        if not whole:
            bodies.give(size)


async def refuse_body(scope: Scope, receive: Receive, send: Send, refusal: Refusal) -> None:
    """Answer and close. What the client is still sending is dropped for a moment.

    A close with unread data would reset the connection, and take the answer away with it.
    """
    reason = refusal.reason
    body = reason.body()
    headers = [*reason.headers(), (b"connection", b"close"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": reason.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    waits_for_leave = any(name == b"expect" for name, _ in scope["headers"])
    if refusal.more and not waits_for_leave:
        try:
            async with asyncio.timeout(DRAIN_LIMIT_S):
                while (await receive()).get("more_body", False):
                    pass
        except TimeoutError:
            pass  # it had its moment
    await send({"type": "http.response.body", "body": b"", "more_body": False})


class AsgiResponder:
    """Carries a relay's plain calls to an ASGI server's `send`, one message after the other."""

    def __init__(self) -> None:
        self._queue: deque[Message | None] = deque()
        self._size = 0
        self._wake = asyncio.Event()
        self._paused = False
        self._relay: Relay | None = None

    def begin(
        self,
        status: int,
        head: bytes,
        length: int | None,
        data: bytes,
        *,
        done: bool,
    ) -> None:
        if length is None and done:
            length = len(data)
        headers = pairs(head)
        if length is not None and status not in NO_BODY:
            headers.append((b"content-length", b"%d" % length))
        self._queue.append({"type": "http.response.start", "status": status, "headers": headers})
        self.body(data, done=done)

    def body(self, data: bytes, *, done: bool) -> None:
        if data or done:
            self._size += len(data)
            self._queue.append({"type": "http.response.body", "body": data, "more_body": not done})
        if self._size > HIGH_WATER and not self._paused and self._relay is not None:
            self._paused = True
            self._relay.pause()
        self._wake.set()

    def cut(self) -> None:
        self._queue.append(None)
        self._wake.set()

    async def run(self, relay: Relay, receive: Receive, send: Send) -> None:
        """Start the relay and send what it says, until its end or the client's."""
        loop = asyncio.get_running_loop()
        me = asyncio.current_task()
        assert me is not None
        gone = False
        self._relay = relay

        async def watch() -> None:
            nonlocal gone
            while (await receive())["type"] != "http.disconnect":
                pass
            if not relay.over:
                gone = True
                me.cancel()

        watcher = loop.create_task(watch())
        try:
            relay.start()
            while await self._send_next(relay, send):
                pass
        except asyncio.CancelledError:
            if not gone:
                raise
        finally:
            watcher.cancel()
            relay.client_gone()

    async def _send_next(self, relay: Relay, send: Send) -> bool:
        """Send one message; False after the last. An answer that is cut just ends, which closes the connection."""
        while not self._queue:
            self._wake.clear()
            await self._wake.wait()
        message = self._queue.popleft()
        if message is None:
            return False
        await send(message)
        self._size -= len(message.get("body", b""))
        if self._paused and self._size <= HIGH_WATER:
            self._paused = False
            relay.resume()
        return message["type"] != "http.response.body" or bool(message["more_body"])
