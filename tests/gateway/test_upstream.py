"""The engine's connection and its pool, on a loop in this process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from api.gateway import upstream
from api.gateway.upstream import Connection, Pool
from tests.waiting import until


class Scripted:
    """A server that answers each request with the next of `answers`."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.heads: list[bytes] = []
        self.open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            while True:
                self.heads.append(await reader.readuntil(b"\r\n\r\n"))
                for piece in self.answers.pop(0).split(b"|"):
                    writer.write(piece)
                    await writer.drain()
                if not self.answers:
                    self.answers.append(ANSWER)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.transport.abort()


ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
HEAD = b"POST /x HTTP/1.1\r\nhost: localhost\r\n\r\n"


class Taker:
    """A user that remembers."""

    def __init__(self) -> None:
        self.body = b""
        self.ended = asyncio.Event()
        self.lost: str | None = None
        self.connection: Connection | None = None

    def upstream_data(self, connection: Connection) -> None:
        self.connection = connection
        self.body += connection.take()
        if connection.done:
            self.ended.set()

    def upstream_lost(self, connection: Connection, detail: str) -> None:
        self.lost = detail
        self.ended.set()


@pytest_asyncio.fixture
async def scripted(tmp_path: Path) -> AsyncIterator[tuple[Scripted, Pool]]:
    server = Scripted()
    server.answers.append(ANSWER)
    listening = await asyncio.start_unix_server(server.serve, str(tmp_path / "s"))
    pool = Pool(path=str(tmp_path / "s"))
    yield server, pool
    pool.close()
    listening.close()
    await until(lambda: server.open == 0, 5)


async def exchange(pool: Pool) -> Taker:
    taker = Taker()
    connection = pool.take() or await pool.dial()
    connection.send(taker, HEAD, b"")
    async with asyncio.timeout(5):
        await taker.ended.wait()
    if taker.lost is None:
        connection.release()
    return taker


async def test_a_connection_is_used_for_99_requests(scripted: tuple[Scripted, Pool]) -> None:
    _, pool = scripted
    used = {id((await exchange(pool)).connection) for _ in range(99)}
    assert len(used) == 1
    assert pool.idle == 0
    assert pool.take() is None


async def test_an_idle_connection_is_closed_before_the_engine_does(
    scripted: tuple[Scripted, Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, pool = scripted
    monkeypatch.setattr(upstream, "IDLE_LIMIT", 0.1)
    await exchange(pool)
    assert (pool.idle, server.open) == (1, 1)
    await until(lambda: server.open == 0, 5)
    assert pool.idle == 0


def test_the_limits_are_below_llama_cpps() -> None:
    assert upstream.IDLE_LIMIT < 5.0
    assert upstream.MOST_REQUESTS < 100


async def test_idle_connections_make_way_for_one_that_waits(
    scripted: tuple[Scripted, Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, pool = scripted
    monkeypatch.setattr(upstream, "CROWDED_AFTER", 0.0)
    monkeypatch.setattr(upstream, "IDLE_LIMIT", 0.5)
    await exchange(pool)
    server.answers[:] = [b"", ANSWER]
    waiting = await pool.dial()
    waiting.send(Taker(), HEAD, b"")
    await until(lambda: pool.idle == 0 and server.open == 1, 5, "the idle one closed")
    waiting.abort()
    assert not pool.waiting


@pytest.mark.parametrize(
    ("answer", "body", "lost"),
    [
        (b"HTTP/1.1 100 Continue\r\n\r\n|" + ANSWER, b"ok", None),
        (b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\n" + ANSWER, b"ok", None),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n|0\r\n\r\n", b"ok", None),
        (b"HTTP/1.1 20|0 OK\r\ncontent-length: 2\r\n|\r\no|k", b"ok", None),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000, b"", "too long"),
        (b"HTP/1.1 200 OK\r\n\r\n", b"", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", b"", "does not speak HTTP"),
    ],
    ids=["continue", "early", "chunks", "pieces", "long head", "no http", "no chunk"],
)
async def test_answers_of_all_kinds(
    scripted: tuple[Scripted, Pool], answer: bytes, body: bytes, lost: str | None
) -> None:
    server, pool = scripted
    server.answers[:] = [answer]
    taker = await exchange(pool)
    assert taker.body == body
    if taker.connection is not None:
        assert taker.connection.head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert taker.lost is None if lost is None else lost in str(taker.lost)
    assert pool.idle == (1 if lost is None else 0)


async def test_a_connection_that_speaks_unasked_is_not_used_again(scripted: tuple[Scripted, Pool]) -> None:
    server, pool = scripted
    server.answers[:] = [ANSWER + b"|" + ANSWER]
    await exchange(pool)
    await until(lambda: server.open == 0, 5)
    assert pool.idle == 0


async def test_a_connection_whose_request_was_not_read_is_not_used_again(scripted: tuple[Scripted, Pool]) -> None:
    _, pool = scripted
    taker = Taker()
    connection = await pool.dial()
    connection.send(taker, b"POST /x HTTP/1.1\r\ncontent-length: 9000000\r\n\r\n", b" " * 9_000_000)
    async with asyncio.timeout(5):
        await taker.ended.wait()
    connection.release()
    assert (taker.body, pool.idle) == (b"ok", 0)
    connection.abort()


async def test_nobody_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await Pool(path=str(tmp_path / "nobody")).dial()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionRefusedError):
            await Pool(port=taken.getsockname()[1]).dial()


async def test_small_packets_are_not_kept_back() -> None:
    server = Scripted()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    connection = await Pool(port=listening.sockets[0].getsockname()[1]).dial()
    sock = connection.transport.get_extra_info("socket")
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
    connection.abort()
    listening.close()
    await until(lambda: connection.closed, 5)
    await until(lambda: server.open == 0, 5)
