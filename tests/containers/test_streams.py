"""Logs and events of real containers."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import pytest

from containers import service, streams
from containers.errors import ContainerMissing, PodmanTimeout, PodmanUnreachable
from containers.podman import Podman
from containers.spec import LogLine
from tests.containers.conftest import frozen, spoken
from tests.waiting import until

Start = Callable[..., Any]


async def collect(lines: AsyncIterator[LogLine]) -> list[LogLine]:
    return [line async for line in lines]


async def has_ended(podman: Podman, container: str) -> bool:
    state = await podman.inspect(container)
    return state is not None and state.state == "exited"


async def test_streams_are_told_apart_and_the_last_line_may_lack_its_end(podman: Podman, started: Start) -> None:
    container = await started("once", "no newline")
    await until(lambda: has_ended(podman, container), 10)
    assert await collect(podman.logs(container)) == [LogLine("stdout", "no newline")]
    state = await podman.inspect(container)
    assert state is not None
    assert state.exit_code == 3

    talker = await started("talk")
    async with asyncio.timeout(10):
        async with aclosing(podman.logs(talker, follow=True)) as lines:
            seen = []
            async for line in lines:
                seen.append(line)
                if line.text == "tick 3":
                    break
    assert LogLine("stderr", "err 1") in seen
    assert [line.text for line in seen if line.stream == "stdout"] == ["out 1", *(f"tick {i}" for i in range(4))]


async def test_a_follower_ends_with_the_workload(podman: Podman, started: Start) -> None:
    container = await started("talk")
    await spoken(podman, container)
    follower = asyncio.create_task(collect(podman.logs(container, follow=True)))
    await podman.stop(container, 5)
    async with asyncio.timeout(10):
        lines = await follower
    assert lines[0].text == "out 1" or lines[0].text == "err 1"


async def test_many_lines_arrive_whole_and_in_order(podman: Podman, started: Start) -> None:
    container = await started("burst", "5000")
    await until(lambda: has_ended(podman, container), 10)
    lines = await collect(podman.logs(container))
    assert [line.text for line in lines] == [f"line {i}" for i in range(5000)]
    assert [line.text for line in await collect(podman.logs(container, tail=2))] == ["line 4998", "line 4999"]
    assert await collect(podman.logs(container, tail=0)) == []


async def test_followers_of_silent_containers_block_nothing_and_let_go_at_once(podman: Podman, started: Start) -> None:
    container = await started("quiet")
    followers = [asyncio.create_task(collect(podman.logs(container, follow=True))) for _ in range(20)]
    for _ in range(3):
        begun = time.monotonic()
        await podman.ping()
        assert time.monotonic() - begun < 1
    assert not any(f.done() for f in followers)
    begun = time.monotonic()
    for follower in followers:
        follower.cancel()
    results = await asyncio.gather(*followers, return_exceptions=True)
    assert time.monotonic() - begun < 0.5
    assert all(isinstance(r, asyncio.CancelledError) for r in results)


async def test_the_log_of_nobody(podman: Podman) -> None:
    with pytest.raises(ContainerMissing):
        await collect(podman.logs("outrider-none"))


async def test_a_stream_says_when_the_service_dies(
    private_service: service.Service, podman: Podman, started: Start
) -> None:
    container = await started("talk")
    other = Podman(private_service.socket)
    first = asyncio.Event()

    async def follow() -> None:
        async for _ in other.logs(container, follow=True):
            first.set()

    following = asyncio.create_task(follow())
    async with asyncio.timeout(10):
        await first.wait()
        assert private_service.pid is not None
        os.kill(private_service.pid, signal.SIGKILL)
        with pytest.raises(PodmanUnreachable):
            await following
    state = await podman.inspect(container)
    assert state is not None
    assert state.alive
    await other.close()


async def test_a_hung_service_does_not_hold_a_reader_for_ever(private_service: service.Service, started: Start) -> None:
    container = await started("quiet")
    other = Podman(private_service.socket, call_timeout=0.3)
    async with frozen(private_service.pid):
        with pytest.raises(PodmanTimeout):
            await collect(other.logs(container))
    await other.close()


def test_frames_may_be_cut_anywhere() -> None:
    whole = b"".join(
        bytes([kind, 0, 0, 0]) + len(body).to_bytes(4, "big") + body
        for kind, body in [(1, b"one\ntw"), (2, b"err\n"), (1, b""), (1, b"o\r\nrest")]
    )
    for cut in range(len(whole)):
        buffer = bytearray()
        got: list[tuple[str, bytes]] = []
        for piece in (whole[:cut], whole[cut:]):
            buffer += piece
            got += streams._frames(buffer)
        assert not buffer
        lines = streams._Lines("stdout")
        text = [line.text for stream, body in got if stream == "stdout" for line in lines.feed(body)]
        assert text == ["one", "two"]
        assert [line.text for line in lines.end()] == ["rest"]
        assert [body for stream, body in got if stream == "stderr"] == [b"err\n"]


def test_a_line_without_an_end_comes_in_pieces() -> None:
    lines = streams._Lines("stdout")
    pieces = lines.feed(b"x" * (streams.LONGEST_LINE * 2 + 5))
    assert [len(p.text) for p in pieces] == [streams.LONGEST_LINE] * 2
    assert [len(p.text) for p in lines.end()] == [5]
