"""An engine that does as it is told: HTTP/1.1 on a unix socket, scripted by the request's own `fake` field.

`{"model": ..., "stream": true, "fake": {"chunks": 5, "die_after": 2}}`. The fields:

    chunks      SSE events of a stream (3); padding  bytes added to each
    gap         seconds between them (0)
    hold        wait for `engine.gate` before the first byte
    hold_after  wait for `engine.gate` after that many events
    die_after   cut the connection after that many events (0: after the head)
    die         cut the connection instead of answering
    half        cut it in the middle of a chunk, after `die_after` events
    status      another status, with an OpenAI-shaped error
    framing     "length" | "chunked" | "close" of a whole answer
    reply       characters of a whole answer's text (8)
    headers     extra response headers
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Request:
    """One request as it arrived."""

    line: str
    headers: list[tuple[str, str]]
    body: bytes
    json: dict[str, Any]

    def header(self, name: str) -> str | None:
        found = [value for key, value in self.headers if key == name]
        assert len(found) <= 1, f"{name} arrived {len(found)} times"
        return found[0] if found else None


@dataclass
class FakeEngine:
    """One engine; counters are for asserting."""

    path: Path
    close_after: int | None = None
    """Requests after which a connection is closed, without saying so."""
    script: Callable[[asyncio.StreamWriter], Awaitable[bool]] | None = None
    """Answers instead of the engine; False ends the connection."""
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    open: int = 0
    active: int = 0
    cancelled: int = 0
    finished: int = 0
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, backlog: int = 100) -> None:
        self._server = await asyncio.start_unix_server(self._connected, str(self.path), backlog=backlog)

    async def stop(self) -> None:
        """Close the listener and cut every connection."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.path.unlink(missing_ok=True)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.open += 1
        served = 0
        try:
            while True:
                request = await _read_request(reader)
                if request is None:
                    return
                self.requests.append(request)
                served += 1
                if not await self._serve(request, reader, writer):
                    return
                if self.close_after is not None and served >= self.close_after:
                    return
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.open -= 1
            self._tasks.discard(task)
            writer.transport.abort()

    async def _serve(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer, watching whether the client leaves meanwhile; False when the connection is to end."""
        self.active += 1
        answering = asyncio.ensure_future(self._answer(request, writer))
        leaving = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                self.cancelled += 1
                return False
            with contextlib.suppress(ConnectionError):
                keep: bool = await answering
                self.finished += 1
                return keep
            self.cancelled += 1
            return False
        finally:
            self.active -= 1
            for future in (answering, leaving):
                future.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        if self.script is not None:
            return await self.script(writer)
        fake: dict[str, Any] = request.json.get("fake", {})
        if fake.get("die"):
            writer.transport.abort()
            return False
        if fake.get("hold"):
            await self.gate.wait()
        if fake.get("status"):
            body = json.dumps({"error": {"message": "engine says no", "type": "x", "code": fake["status"]}}).encode()
            return await self._whole(writer, fake, int(fake["status"]), body)
        if request.json.get("stream"):
            return await self._stream(writer, fake)
        text = "x" * fake.get("reply", 8)
        message = {"role": "assistant", "content": text}
        choice: dict[str, Any] = {"index": 0, "message": message, "text": text, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        document = {
            "id": "cmpl-1",
            "object": "chat.completion" if "messages" in request.json else "text_completion",
            "created": 1,
            "model": request.json["model"],
            "choices": [choice],
            "usage": usage,
        }
        return await self._whole(writer, fake, 200, json.dumps(document).encode())

    async def _whole(self, writer: asyncio.StreamWriter, fake: dict[str, Any], status: int, body: bytes) -> bool:
        head = f"HTTP/1.1 {status} X\r\nServer: fake\r\nDate: never\r\nContent-Type: application/json\r\n"
        head += "Keep-Alive: timeout=5, max=100\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in fake.get("headers", {}).items())
        framing = fake.get("framing", "length")
        if framing == "length":
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        elif framing == "chunked":
            writer.write(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
            for piece in (body[:7], body[7:]):
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                await writer.drain()
            writer.write(b"0\r\n\r\n")
        else:
            writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
        await writer.drain()
        if framing == "close":
            writer.close()
            await writer.wait_closed()
        return bool(framing != "close")

    async def _stream(self, writer: asyncio.StreamWriter, fake: dict[str, Any]) -> bool:
        writer.write(
            b"HTTP/1.1 200 OK\r\nserver: fake\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        die_after = fake.get("die_after")
        for index in range(fake.get("chunks", 3)):
            if index == fake.get("hold_after"):
                await self.gate.wait()
            if index == die_after:
                await writer.drain()
                if fake.get("half"):
                    writer.write(b'400\r\ndata: {"half')
                    await writer.drain()
                writer.transport.write_eof()
                return False
            delta = {"content": f"w{index} " + "." * fake.get("padding", 0)}
            choice = {"index": 0, "delta": delta, "text": f"w{index} ", "finish_reason": None}
            event = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
            data = b"data: " + json.dumps(event).encode() + b"\n\n"
            writer.write(b"%x\r\n%b\r\n" % (len(data), data))
            await writer.drain()
            if fake.get("gap"):
                await asyncio.sleep(fake["gap"])
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        await writer.drain()
        return True


async def _read_request(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    line, *rest = head.split("\r\n")[:-2]
    headers = [(name.lower(), value.strip()) for name, _, value in (item.partition(":") for item in rest)]
    length = int(dict(headers).get("content-length", "0"))
    body = await reader.readexactly(length)
    return Request(line, headers, body, json.loads(body) if body else {})
