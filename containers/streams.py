"""Containers' logs, read on the event loop.

Through podman-py a follower would hold a thread for as long as the engine lives, and
could not be made to let go. Here each stream has a connection of its own on the unix
socket; cancelling the reader closes it at once.

An iterator that is left early is best closed: `async with aclosing(podman.logs(...))`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp

from containers import failures
from containers.spec import LogLine

LONGEST_LINE = 64 * 1024
"""Bytes; a longer line comes in pieces, so that a stream without newlines cannot grow without end."""
CONNECT_LIMIT = 10.0

_API = "http://podman/v5.0.0/libpod"
_STREAMS = {0: "stdout", 1: "stdout", 2: "stderr"}
_HEADER = 8


async def logs(
    socket: str,
    container: str,
    *,
    tail: int | None = None,
    follow: bool = False,
    since: float | None = None,
    limit: float = 30.0,
) -> AsyncGenerator[LogLine, None]:
    """The lines of a container's log, standard output and error told apart.

    `tail` is how many old lines to begin with (None: all), `since` Unix seconds. With
    `follow` it goes on until the workload ends; without, it ends with what there is, and
    `limit` seconds of silence raise `PodmanTimeout`. Raises `ContainerMissing`, and
    `PodmanUnreachable` when the connection breaks.
    """
    params = {
        "stdout": "true",
        "stderr": "true",
        "follow": str(follow).lower(),
        "tail": "all" if tail is None else str(tail),
    }
    if since is not None:
        params["since"] = f"{since:.9f}"
    doing = f"read the log of {container}"
    splitters = {name: _Lines(name) for name in ("stdout", "stderr")}
    silence = None if follow else limit
    async with _open(socket, f"/containers/{container}/logs", params, doing, silence) as answer:
        buffer = bytearray()
        async for chunk in answer.content.iter_any():
            buffer += chunk
            for stream, data in _frames(buffer):
                for line in splitters[stream].feed(data):
                    yield line
    for splitter in splitters.values():
        for line in splitter.end():
            yield line


@asynccontextmanager
async def _open(
    socket: str, path: str, params: Mapping[str, str], doing: str, silence: float | None
) -> AsyncIterator[aiohttp.ClientResponse]:
    """One GET on a connection of its own; what breaks in it comes out as an error of ours."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_LIMIT, sock_read=silence)
    try:
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(path=socket), timeout=timeout) as session,
            session.get(_API + path, params=params) as answer,
        ):
            if answer.status >= 400:
                raise failures.refused(answer.status, _message(await answer.text()), doing)
            yield answer
    except (aiohttp.ServerTimeoutError, TimeoutError) as error:
        raise failures.timed_out(doing, silence or CONNECT_LIMIT) from error
    except (aiohttp.ClientError, OSError) as error:
        raise failures.unreachable(doing, socket, error) from error


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text


def _frames(buffer: bytearray) -> list[tuple[str, bytes]]:
    """Take the whole frames off the front of `buffer`: a byte of stream, three of nothing, four of length."""
    frames = []
    start = 0
    while len(buffer) - start >= _HEADER:
        size = int.from_bytes(buffer[start + 4 : start + _HEADER], "big")
        if len(buffer) - start - _HEADER < size:
            break
        body = bytes(buffer[start + _HEADER : start + _HEADER + size])
        frames.append((_STREAMS.get(buffer[start], "stderr"), body))
        start += _HEADER + size
    del buffer[:start]
    return frames


class _Lines:
    """Splits one stream into lines; what has no newline yet waits for it."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._rest = b""

    def feed(self, data: bytes) -> list[LogLine]:
        *whole, self._rest = (self._rest + data).split(b"\n")
        lines = [self._line(part) for part in whole]
        while len(self._rest) > LONGEST_LINE:
            lines.append(self._line(self._rest[:LONGEST_LINE]))
            self._rest = self._rest[LONGEST_LINE:]
        return lines

    def end(self) -> list[LogLine]:
        rest, self._rest = self._rest, b""
        return [self._line(rest)] if rest else []

    def _line(self, data: bytes) -> LogLine:
        return LogLine(self._stream, data.removesuffix(b"\r").decode(errors="replace"))
