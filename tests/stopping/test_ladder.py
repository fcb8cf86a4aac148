"""The stop ladder against real containers, with a Podman that is well, silent, gone, or blind."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from containers import proc, service
from containers.errors import PodmanTimeout, PodmanUnreachable
from containers.exit_watch import ExitWatch
from containers.podman import Podman
from containers.spec import ContainerState
from orchestrator.clock import SystemClock
from orchestrator.stopping import clearing, ladder
from orchestrator.stopping.ladder import Ending, Rung
from tests.containers.conftest import frozen, spoken
from tests.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]
CLOCK = SystemClock()


@dataclass
class Followed:
    """A container whose process is watched as an engine's is."""

    id: str
    state: ContainerState
    watch: ExitWatch
    exited: asyncio.Event

    async def end(self, podman: Podman, grace: float) -> Ending:
        return await ladder.end(podman, CLOCK, self.id, grace, watch=self.watch, exited=self.exited)

    def left(self) -> tuple[proc.Process, ...]:
        return proc.members(self.id)


Follow = Callable[[str], Awaitable[Followed]]


@pytest.fixture
async def follow(podman: Podman, started: Callable[[str], Awaitable[str]]) -> AsyncIterator[Follow]:
    """Start a container and watch its process."""
    made: list[Followed] = []

    async def start(what: str) -> Followed:
        container = await started(what)
        if what != "quiet":
            await spoken(podman, container)
        state = await podman.inspect(container)
        assert state is not None
        assert state.pid is not None
        exited = asyncio.Event()
        made.append(Followed(container, state, ExitWatch(state.pid, exited.set), exited))
        return made[-1]

    yield start
    for one in made:
        one.watch.close()


async def test_one_that_listens_ends_when_it_is_asked(podman: Podman, follow: Follow) -> None:
    one = await follow("talk")
    assert [p.pid for p in one.left()] == [one.state.pid]
    ending = await one.end(podman, 5)
    assert (ending.rung, ending.podman) == (Rung.STOP, None)
    assert ladder.unusual("m-1", ending) is None, "nothing to tell"
    assert one.left() == ()
    again = await one.end(podman, 5)
    assert again.rung is Rung.ENDED


async def test_one_that_does_not_listen_is_killed_after_the_grace(podman: Podman, follow: Follow) -> None:
    one = await follow("stubborn")
    ending = await one.end(podman, 1)
    assert ending.rung is Rung.SIGKILL
    assert 1 <= ending.seconds < 6
    assert str(ladder.unusual("m-1", ending)).startswith("m-1 did not end when asked to: killed after ")


@pytest.mark.parametrize(("what", "rung"), [("talk", Rung.SIGTERM), ("stubborn", Rung.SIGKILL)])
async def test_a_podman_that_hangs_keeps_no_engine_alive(
    follow: Follow, private_service: service.Service, monkeypatch: pytest.MonkeyPatch, what: str, rung: Rung
) -> None:
    monkeypatch.setattr(ladder, "ANSWER", 0.2)
    one = await follow(what)
    podman = Podman(private_service.socket, call_timeout=0.5)
    async with frozen(private_service.pid):
        begun = time.monotonic()
        ending = await one.end(podman, 0.5)
        assert ending.rung is rung
        assert ending.podman is not None
        assert "no answer within" in ending.podman
        assert one.exited.is_set(), "its memory is free although Podman says nothing"
        with pytest.raises(PodmanTimeout):
            await podman.remove(one.id)  # bounded, and tried again later
        assert time.monotonic() - begun < 8
    await until(lambda: not proc.conmon_alive(one.state.conmon_pid, one.id), 10, "its conmon ended too")
    thawed = Podman(private_service.socket)
    await thawed.remove(one.id)  # the removal that timed out may have been carried out meanwhile
    assert await thawed.inspect(one.id) is None
    assert one.left() == ()
    for client in (podman, thawed):
        await client.close()


async def test_without_podmans_socket_the_engine_ends_at_once(follow: Follow, private_service: service.Service) -> None:
    one = await follow("talk")
    podman = Podman(private_service.socket)
    Path(private_service.socket).unlink()
    ending = await one.end(podman, 5)
    assert ending.rung is Rung.SIGTERM
    assert ending.seconds < 3
    assert "asked to end without Podman" in str(ladder.unusual("m-1", ending))
    with pytest.raises(PodmanUnreachable):
        await podman.remove(one.id)
    await podman.close()


@pytest.mark.parametrize("what", ["talk", "stubborn"])
async def test_with_its_conmon_dead_an_engine_is_stopped_and_nothing_is_left(
    podman: Podman, follow: Follow, what: str
) -> None:
    one = await follow(what)
    assert one.state.conmon_pid is not None
    os.kill(one.state.conmon_pid, signal.SIGKILL)
    await until(lambda: not proc.conmon_alive(one.state.conmon_pid, one.id), 5)
    begun, grace = time.monotonic(), 20 if what == "talk" else 1
    ending = await one.end(podman, grace)
    assert one.exited.is_set()
    assert ending.rung is (Rung.STOP if what == "talk" else Rung.SIGKILL)
    assert await podman.remove(one.id) is True
    assert time.monotonic() - begun < 15, "it does not wait for the grace, as Podman does"
    assert await podman.inspect(one.id) is None
    assert one.left() == ()


async def test_without_a_watch_podmans_word_has_to_do(podman: Podman, started: Callable[..., Awaitable[str]]) -> None:
    container = await started("quiet")
    assert (await ladder.end(podman, CLOCK, container, 1)).rung is Rung.STOP
    assert (await ladder.end(podman, CLOCK, container, 1)).rung is Rung.ENDED
    await podman.remove(container)
    assert (await ladder.end(podman, CLOCK, container, 1)).rung is Rung.ENDED


async def test_what_is_left_of_a_container_is_killed_and_nobody_else(
    podman: Podman, started: Callable[..., Awaitable[str]]
) -> None:
    mine, others = await started("stubborn"), await started("stubborn")
    for container in (mine, others):
        await spoken(podman, container)
    (victim,), (bystander,) = clearing.alive_in(mine), clearing.alive_in(others)
    await asyncio.to_thread(clearing.kill, mine, [bystander.pid, victim.pid, 4194302])
    await until(lambda: not clearing.alive_in(mine), 5, "the container's own process")
    assert [h.pid for h in clearing.alive_in(others)] == [bystander.pid], "a pid that is not the container's is spared"
    assert victim.state is not None
