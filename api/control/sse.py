"""Server-sent events from an async iterator, with an end that is always reached.

One task (the pump) lives with the iterator from its first step to its `aclose`,
so that a generator may hold timeouts and task groups across its yields. It hands
items to the writer through a queue of a few places, and the writer waits for the
client's socket: a slow reader stops the iterator instead of filling memory.
The client's leaving, the server's stopping and the iterator's end all take the
same way out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.control.problems import Problem, ProblemResponse, from_error, internal, json_bytes
from orchestrator.errors import OutriderError

log = logging.getLogger("outrider.api")

T = TypeVar("T")
PING = 4.0
"""Seconds of silence after which a comment is sent; readers may count on one every 5 s."""
STALL = 60.0
"""Seconds that one write may wait for the reader before the connection is given up."""
FIRST = 0.2
"""Seconds to wait for the first item: an iterator that fails at once becomes a plain problem response."""
LAST_WORD = 0.3
"""Seconds that a stopping server waits for a reader to take the last event."""
PLACES = 8
"""Items between the source and the socket."""
_PING = b": ping\n\n"


@dataclass(frozen=True, slots=True)
class Message:
    """One event. `data` is anything JSON-able; `id` lets a reader go on from there."""

    event: str
    data: Any
    id: str | None = None

    def encode(self) -> bytes:
        """The wire form. JSON in one line cannot hold a raw line break."""
        head = b"" if self.id is None else b"id: " + self.id.encode() + b"\n"
        return head + b"event: " + self.event.encode() + b"\ndata: " + json_bytes(self.data) + b"\n\n"


@dataclass(frozen=True, slots=True)
class _Last:
    """The pump's last word: the end, or what went wrong."""

    problem: Problem | None


class Streams:
    """The open streams of a server, so that a stop can end them all at once."""

    def __init__(self) -> None:
        self.closing = asyncio.Event()
        self.open = 0


class EventStream(Response):
    """`text/event-stream` of `messages(item)` for each item of `source`.

    Ends with `event: end` when the source ends or the server stops, or with one
    `event: error` holding the problem. `source` is closed (`aclose`) before the
    response is over, whatever ends it.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        source: AsyncIterator[T],
        message: Callable[[T], Message],
        streams: Streams,
        *,
        ping_s: float = PING,
        stall_s: float = STALL,
    ) -> None:
        super().__init__(status_code=200, headers={"x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._source = source
        self._message: Callable[[Any], Message] = message
        self._streams = streams
        self._ping_s = ping_s
        self._stall_s = stall_s
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the stream until one side ends it."""
        queue: asyncio.Queue[bytes | _Last] = asyncio.Queue(PLACES)
        pump = asyncio.create_task(self._pump(queue), name="sse pump")
        gone = asyncio.create_task(_disconnected(receive), name="sse disconnect")
        self._streams.open += 1
        try:
            await self._serve(queue, gone, scope, receive, send)
        finally:
            self._streams.open -= 1
            for task in (gone, pump):
                task.cancel()
            await asyncio.gather(gone, pump, return_exceptions=True)

    async def _serve(
        self, queue: asyncio.Queue[bytes | _Last], gone: asyncio.Task[None], scope: Scope, receive: Receive, send: Send
    ) -> None:
        first: bytes | _Last | None = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST):
                first = await queue.get()
        if isinstance(first, _Last) and first.problem is not None:
            await ProblemResponse(first.problem)(scope, receive, send)
            return
        writer = asyncio.create_task(self._write(queue, first, send), name="sse writer")
        closing = asyncio.create_task(self._streams.closing.wait(), name="sse closing")
        try:
            await asyncio.wait({writer, gone, closing}, return_when=asyncio.FIRST_COMPLETED)
            if not writer.done() and closing.done() and not gone.done():
                await _cancel(writer)
                if self._started:
                    await self._say_goodbye(send)
        finally:
            await _cancel(closing)
            stalled = await _cancel(writer)
            if isinstance(stalled, TimeoutError):
                log.warning("an event stream was given up: its reader took nothing for %.0f s", self._stall_s)
                _abort(scope)
            elif stalled is not None:
                raise stalled

    async def _pump(self, queue: asyncio.Queue[bytes | _Last]) -> None:
        """Move items from the source to the queue; close the source in the task that ran it."""
        last = _Last(None)
        try:
            try:
                async for item in self._source:
                    await queue.put(self._message(item).encode())
            finally:
                await _close(self._source)
        except OutriderError as error:
            last = _Last(from_error(error))
        except (Exception, asyncio.CancelledError):
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # the response ends; nobody reads the queue any more
            instance = f"urn:outrider:request:{secrets.token_hex(8)}"
            log.exception("an event stream failed (%s)", instance)
            last = _Last(internal(instance))
        await queue.put(last)

    async def _write(self, queue: asyncio.Queue[bytes | _Last], first: bytes | _Last | None, send: Send) -> None:
        await self._send(send, {"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        self._started = True
        item = first
        while True:
            if item is None:
                try:
                    async with asyncio.timeout(self._ping_s):
                        item = await queue.get()
                except TimeoutError:
                    await self._body(send, _PING)
                    continue
            if isinstance(item, _Last):
                await self._body(send, _goodbye(item.problem), more=False)
                return
            await self._body(send, item)
            item = None

    async def _say_goodbye(self, send: Send) -> None:
        """End an open stream because the server stops; a reader that takes nothing is not waited for."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORD):
                await send({"type": "http.response.body", "body": _goodbye(None, "stopping"), "more_body": False})

    async def _body(self, send: Send, body: bytes, *, more: bool = True) -> None:
        await self._send(send, {"type": "http.response.body", "body": body, "more_body": more})

    async def _send(self, send: Send, message: Mapping[str, Any]) -> None:
        async with asyncio.timeout(self._stall_s):
            await send(dict(message))


def _goodbye(problem: Problem | None, reason: str = "complete") -> bytes:
    if problem is None:
        return Message("end", {"reason": reason}).encode()
    return b"event: error\ndata: " + problem.body + b"\n\n"


async def _close(source: AsyncIterator[Any]) -> None:
    """Run an async generator's `finally` now, not when the collector gets to it."""
    close: Callable[[], Awaitable[None]] | None = getattr(source, "aclose", None)
    if close is not None:
        await close()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(task: asyncio.Task[Any]) -> BaseException | None:
    """End a task and wait for it; what it failed with, or None."""
    task.cancel()
    await asyncio.wait({task})
    return None if task.cancelled() else task.exception()


def _abort(scope: Scope) -> None:
    """Drop the connection with what is still unsent: a plain close would wait for the reader."""
    abort: Callable[[], None] | None = scope.get("state", {}).get("abort")
    if abort is not None:
        abort()


async def collect(source: AsyncIterator[T], limit: int) -> list[T]:
    """The first `limit` items of a source that is closed afterwards."""
    found: list[T] = []
    try:
        if limit > 0:
            async for item in source:
                found.append(item)
                if len(found) >= limit:
                    break
    finally:
        await _close(source)
    return found


def streamed(
    responses: dict[int | str, dict[str, Any]], description: str, *, only: bool = False
) -> dict[int | str, dict[str, Any]]:
    """OpenAPI's `responses` with a 200 that is (`only`), or that may be, an event stream."""
    content = {"text/event-stream": {"schema": {"type": "string", "description": description}}}
    text = "Server-sent events." if only else "A list, or server-sent events."
    return {**responses, 200: {"description": text, "content": content}}
