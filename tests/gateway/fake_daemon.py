"""The daemon's side of the link: a table as server-sent events, and reports taken in. On a unix socket."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class FakeDaemon:
    """`publish` sends a table to whoever follows; `mute` keeps connections open and says nothing."""

    path: Path
    table: str | None = None
    """The raw text of the last message, as it goes out: it may be garbage."""
    reports: list[dict[str, Any]] = field(default_factory=list)
    followers: int = 0
    connections: int = 0
    mute: bool = False

    def __post_init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._queues: set[asyncio.Queue[str]] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._connected, str(self.path))

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        self.path.unlink(missing_ok=True)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def publish(self, text: str) -> None:
        self.table = text
        for queue in self._queues:
            queue.put_nowait(text)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                if head.startswith("GET /api/v1/gateway/table "):
                    await self._follow(reader, writer)
                    return
                assert head.startswith("POST /api/v1/gateway/report "), head
                lengths = [line for line in head.split("\r\n") if line.startswith("content-length: ")]
                self.reports.append(json.loads(await reader.readexactly(int(lengths[0].split()[1]))))
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _follow(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        queue: asyncio.Queue[str] = asyncio.Queue()
        gone = asyncio.ensure_future(reader.read(1))
        self._queues.add(queue)
        self.followers += 1
        try:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            if self.table is not None and not self.mute:
                self._send(writer, self.table)
            waiting = asyncio.ensure_future(queue.get())
            try:
                while not gone.done():
                    await asyncio.wait((waiting, gone), timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
                    if not self.mute:
                        writer.write(b"8\r\n: ping\n\n\r\n")
                    if waiting.done():
                        self._send(writer, waiting.result())
                        waiting = asyncio.ensure_future(queue.get())
            finally:
                waiting.cancel()
        finally:
            gone.cancel()
            self.followers -= 1
            self._queues.discard(queue)

    @staticmethod
    def _send(writer: asyncio.StreamWriter, text: str) -> None:
        data = f": ping\n\nevent: table\ndata: {text}\n\n".encode()
        writer.write(b"%x\r\n%b\r\n" % (len(data), data))
