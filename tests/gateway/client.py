"""A small HTTP/1.1 client that shows everything and hides nothing: raw requests, raw framing."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

LIMIT = 10.0
OPEN: list[Client] = []
"""Connections of the running test, for the fixture that ends them."""


@dataclass
class Response:
    """One response. `raw` is the body as it came, framing included."""

    version: str
    status: int
    headers: dict[str, str]
    body: bytes
    complete: bool = True

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json()["error"]["code"])

    def events(self) -> list[str]:
        """The data of each server-sent event."""
        return [line[6:] for line in self.body.decode().split("\n") if line.startswith("data: ")]


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.chunked = False
        OPEN.append(self)

    @classmethod
    async def connect(cls, address: tuple[str, int]) -> Client:
        return cls(*await asyncio.open_connection(*address, limit=2**20))

    def send(self, raw: bytes) -> None:
        self.writer.write(raw)

    def post(self, body: object, path: str = "/v1/chat/completions", **headers: str) -> None:
        self.send(build("POST", path, body, **headers))

    async def head(self) -> Response:
        """Status and headers of the next response."""
        async with asyncio.timeout(LIMIT):
            text = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status, *rest = text.split("\r\n")[:-2]
        version, code, *_ = status.split(" ")
        assert version == "HTTP/1.1", f"not the beginning of a response: {status!r}"
        headers: dict[str, str] = {}
        for line in rest:
            name, _, value = line.partition(":")
            assert name.lower() not in headers, f"{name} stands there twice"
            headers[name.lower()] = value.strip()
        self.chunked = headers.get("transfer-encoding") == "chunked"
        return Response(version, int(code), headers, b"")

    async def chunk(self) -> bytes:
        """The next chunk of a chunked body; empty at its end. Raises `IncompleteReadError` when cut."""
        async with asyncio.timeout(LIMIT):
            size = int((await self.reader.readuntil(b"\r\n")).strip(), 16)
            data = await self.reader.readexactly(size)
            assert await self.reader.readexactly(2) == b"\r\n"
        return data

    async def response(self, *, head_only: bool = False) -> Response:
        """The next response, whole; `complete` is False when the connection was cut within."""
        found = await self.head()
        try:
            if head_only or found.status in {204, 304} or found.status < 200:
                pass
            elif self.chunked:
                while data := await self.chunk():
                    found.body += data
            elif "content-length" in found.headers:
                async with asyncio.timeout(LIMIT):
                    found.body = await self.reader.readexactly(int(found.headers["content-length"]))
            else:
                async with asyncio.timeout(LIMIT):
                    found.body = await self.reader.read()
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            found.complete = False
            found.body += getattr(error, "partial", b"")
        return found

    async def closed(self) -> bool:
        """Whether the other end closes the connection, without another byte."""
        try:
            async with asyncio.timeout(LIMIT):
                return await self.reader.read(1) == b""
        except ConnectionError:
            return True

    def abort(self) -> None:
        """Leave without a word."""
        self.writer.transport.abort()


def build(method: str, path: str, body: object = None, version: str = "1.1", **headers: str) -> bytes:
    """A request's bytes. Header names are given with underscores."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/{version}", "Host: localhost"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + data


async def ask(
    address: tuple[str, int], body: object = None, path: str = "/v1/chat/completions", method: str = "", **headers: str
) -> Response:
    """One request on a connection of its own."""
    client = await Client.connect(address)
    try:
        client.send(build(method or ("GET" if body is None else "POST"), path, body, **headers))
        return await client.response(head_only=method == "HEAD")
    finally:
        client.abort()
