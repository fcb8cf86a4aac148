"""What a former daemon left behind and is to go: until that is known, nothing is started beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from containers.errors import PodmanUnreachable
from orchestrator.errors import EngineFailed
from orchestrator.leftovers import TRIES
from orchestrator.views import Desired, State
from tests.daemon.world import LIMIT, World
from tests.waiting import until

LEFT = "b" * 16
CONTAINER = f"c-{LEFT}"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = await World.open(tmp_path)
    made.d.desired = Desired.RUNNING
    yield made
    await made.close()


def left(world: World, state: str, *, alive: bool) -> None:
    """A container of `m` in this state."""
    world.podman.states = [replace(world.container(LEFT, 1), state=state, alive=alive)]


async def unanswered(container: str) -> object:
    """A call while Podman is away."""
    raise PodmanUnreachable("nobody answers")


async def removed_in_vain(world: World, monkeypatch: pytest.MonkeyPatch, remove: object) -> None:
    """A daemon begins, and cannot know whether its removal was done."""
    monkeypatch.setattr(world.podman, "remove", remove)
    monkeypatch.setattr(world.podman, "inspect", unanswered)
    await world.adopt()
    world.run()
    await world.until_code("not_removed")


async def test_a_start_that_is_on_its_way_to_podman_is_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not run yet: the daemon that asked for it died, and Podman has not got to it."""
    left(world, "created", alive=False)
    remove, away = world.podman.remove, True

    async def removed(container: str) -> bool:
        if away:
            raise PodmanUnreachable("nobody answers")
        world.podman.states.clear()
        return await remove(container)

    await removed_in_vain(world, monkeypatch, removed)
    await until(lambda: world.route().reason is not None, LIMIT, "it says why it does not start")
    assert world.route().reason.code == "remains"  # type: ignore[union-attr]
    assert (world.d.shown_state(), world.route().hold, world.runner.ups) == (State.CREATING, True, 0)
    assert world.memory.adopted == {LEFT: True}, "it may load at any moment"
    left(world, "running", alive=True)
    away = False
    await world.adopter.relist([world.actor])
    await until(lambda: world.d.serving_engine is not None, LIMIT, "started once that was gone")
    assert (world.podman.stopped, world.podman.removed) == ([], [CONTAINER])
    assert LEFT not in world.memory.adopted


async def test_one_that_was_removed_without_an_answer_is_over(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    left(world, "created", alive=False)
    await removed_in_vain(world, monkeypatch, unanswered)
    world.podman.states.clear()
    await world.adopter.relist([world.actor])
    await until(lambda: world.d.serving_engine is not None, LIMIT, "started, for that one is not listed")
    assert world.memory.adopted.get(LEFT) is None


async def test_what_nobody_can_end_is_in_nobodys_way(world: World) -> None:
    """Podman answers and cannot remove it: it keeps its memory, and another is started beside it."""
    left(world, "running", alive=True)
    world.podman.unstoppable.add(CONTAINER)
    world.podman.states[0] = replace(world.podman.states[0], conmon_alive=False)
    await world.adopt()
    world.run()
    await world.until_code("not_removed")
    assert TRIES == 2
    assert (world.runner.ups, world.d.remains) == (0, {CONTAINER})
    await world.adopter.relist([world.actor])
    await until(lambda: world.d.serving_engine is not None, LIMIT, "started beside it")
    assert LEFT in world.memory.adopted
    assert world.journal_codes().count("not_removed") == 1, "told once"


async def test_what_has_ended_keeps_nothing_waiting(world: World) -> None:
    left(world, "exited", alive=False)
    world.podman.unstoppable.add(CONTAINER)
    await world.adopt()
    assert world.d.remains == set()
    assert world.memory.adopted == {}
    world.run()
    await until(lambda: world.d.serving_engine is not None, LIMIT, "started")


async def test_what_has_gone_before_its_deployment_heard_of_it_keeps_nothing_waiting(world: World) -> None:
    """A create was being called off, which takes as long as Podman does, and a stranger was found and removed."""
    world.runner.create_may_end = asyncio.Event()
    world.run()
    await until(lambda: world.runner.ups == 1, LIMIT, "a create is on its way")
    await world.actor.set_desired(Desired.STOPPED, "t")
    await until(lambda: "start_aborted" in world.journal_codes(), LIMIT, "it is called off")
    left(world, "running", alive=True)
    for _ in range(2):
        await world.adopter.relist([world.actor])
    world.podman.states.clear()
    await until(lambda: not world.adopter.leftovers, LIMIT, "the stranger has gone")
    world.runner.create_may_end.set()
    await until(lambda: not world.d.live(), LIMIT, "called off")
    await world.actor.set_desired(Desired.RUNNING, "t")
    await until(lambda: world.d.serving_engine is not None, LIMIT, "started")


async def test_a_request_waits_for_what_is_to_go_first(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """There on demand, it would be started by the request but for that."""
    world.d.desired = Desired.ON_DEMAND
    left(world, "running", alive=True)
    asked, may_end = world.podman.remove, asyncio.Event()

    async def remove(container: str) -> bool:
        await may_end.wait()
        return await asked(container)

    monkeypatch.setattr(world.podman, "remove", remove)
    await world.adopt()
    world.run()
    await until(lambda: world.podman.stopped == [CONTAINER], LIMIT, "it is being taken down")
    assert world.route().hold
    world.actor.call(lambda: None)
    await until(lambda: world.d.should_run, LIMIT, "called")
    assert (world.runner.ups, world.route().hold) == (0, True)
    may_end.set()
    await until(lambda: world.d.serving_engine is not None, LIMIT, "started once that was gone")


async def test_what_leaves_its_memory_behind_is_no_less_wedged_than_an_engine(world: World) -> None:
    """Its container has gone, and the barrier says who holds what: waited for as long as a removal is."""
    left(world, "running", alive=True)
    world.runner.fail_cleared = EngineFailed("wedged", "n was removed and its memory is held on GPU 0: process 7")
    await world.adopt()
    world.run()
    await world.until_code("not_removed")
    world.podman.states.clear()
    assert (world.runner.ups, world.d.remains) == (0, {CONTAINER})
    await world.adopter.relist([world.actor])
    await until(lambda: world.d.serving_engine is not None, LIMIT, "started beside it")
    assert LEFT in world.memory.adopted, "what it holds is accounted for"
    world.runner.fail_cleared = None
    await world.adopter.relist([world.actor])
    await until(lambda: not world.adopter.leftovers, LIMIT, "it is free after all")
    assert LEFT not in world.memory.adopted


async def test_the_host_is_read_before_anything_is_planned_for_what_comes_free(world: World) -> None:
    left(world, "running", alive=True)
    seen: list[int] = []
    waits_no_longer = world.actor.wait_no_longer

    def told(container: str) -> None:
        seen.append(world.runner.reads)
        waits_no_longer(container)

    world.actor.wait_no_longer = told  # type: ignore[method-assign]
    await world.adopt()
    await until(lambda: seen, LIMIT, "it has gone")
    assert seen == [1]
