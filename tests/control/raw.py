"""HTTP by hand: what no well-behaved client would send."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIMIT = 5.0


@dataclass
class Answer:
    """A response as it came."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def problem(self) -> tuple[int, str]:
        """(status, code) of a problem document, which it has to be."""
        assert self.headers["content-type"] == "application/problem+json", self
        document: dict[str, Any] = json.loads(self.body)
        assert document["status"] == self.status
        assert document["type"] == f"urn:outrider:{document['code']}"
        return self.status, document["code"]


@asynccontextmanager
async def connected(where: int | Path) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a TCP port or a unix socket."""
    if isinstance(where, int):
        reader, writer = await asyncio.open_connection("127.0.0.1", where)
    else:
        reader, writer = await asyncio.open_unix_connection(where)
    try:
        yield reader, writer
    finally:
        writer.close()


async def ask(where: int | Path, request: str | bytes, *, head: bool = False) -> Answer:
    """Send bytes as they are, read one response."""
    async with connected(where) as (reader, writer):
        writer.write(request if isinstance(request, bytes) else request.encode())
        return await answer_of(reader, head=head)


async def answer_of(reader: asyncio.StreamReader, *, head: bool = False) -> Answer:
    async with asyncio.timeout(LIMIT):
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)
        }
        length = 0 if head else int(headers.get("content-length", "0"))
        body = await reader.readexactly(length)
    return Answer(int(lines[0].split()[1]), headers, body)


def request(
    method: str = "GET",
    target: str = "/api/v1/version",
    *,
    host: str | None = "127.0.0.1",
    headers: tuple[str, ...] = (),
    body: str = "",
) -> str:
    """A request's text."""
    lines = [f"{method} {target} HTTP/1.1"]
    if host is not None:
        lines.append(f"Host: {host}")
    lines += headers
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines) + "\r\n\r\n" + body
