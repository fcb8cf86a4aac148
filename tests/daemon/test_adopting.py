"""A new daemon and what it finds: nothing healthy is lost, and one bad container spoils nothing."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from pathlib import Path

import pytest

from containers import labels as container_labels
from containers.spec import ContainerState
from orchestrator import governor
from orchestrator.engine import Engine, remove_files, socket_folder, write_key
from orchestrator.governing import govern
from orchestrator.views import Desired, State
from tests.daemon.world import LIMIT, World, _Healthy
from tests.waiting import until


async def test_what_runs_is_adopted(world: World) -> None:
    engine = await world.found_running()
    await world.adopt()
    world.run()
    await until(lambda: any(e.admit for e in world.route().engines), LIMIT, "it serves")
    assert [e.id for e in world.d.engines] == [engine]
    assert (world.runner.ups, world.runner.downs, world.podman.stopped) == (0, 0, [])


async def test_one_container_that_does_not_stop_spoils_nothing(world: World) -> None:
    await world.found_running()
    world.podman.states.append(world.container("b" * 16, world.runner.children[0].pid, deployment="gone"))
    world.podman.unstoppable.add("c-" + "b" * 16)
    for _ in range(3):  # as often as one likes: nothing is adopted twice
        await world.adopt()
    world.run()
    await world.until_code("not_removed")
    assert len(world.d.engines) == 1
    assert len(world.route().engines) == 1
    assert (world.runner.downs, world.podman.stopped) == (0, [])
    await world.adopter.relist([world.actor])
    await world.adopter.relist([world.actor])
    assert world.d.serving_engine is not None, "a stranger that stays does not end the rounds"


async def test_engines_survive_a_lost_database(world: World) -> None:
    await world.found_running(desired=None)
    await world.adopt()
    assert (world.d.desired, world.d.desired_by) == (Desired.RUNNING, "adoption")
    assert world.podman.stopped == []
    assert [(r.deployment, r.desired) for r in await world.store.desired()] == [("m", Desired.RUNNING)]


async def test_what_a_person_stopped_is_taken_down(world: World) -> None:
    await world.found_running(desired=Desired.STOPPED)
    await world.adopt()
    await until(lambda: world.podman.removed == ["c-" + "a" * 16], LIMIT, "removed")
    assert world.d.engines == []
    await until(lambda: not any(world.paths.engines.iterdir()), LIMIT, "its files are gone")


async def test_a_listing_that_is_old_when_it_arrives_ends_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.found_running()
    await world.adopt()
    engine = world.d.engines[0]
    there = list(world.podman.states)

    async def before_the_create(labels: object) -> tuple[ContainerState, ...]:
        return ()

    monkeypatch.setattr(world.podman, "containers", before_the_create)
    await world.adopter.relist([world.actor])
    assert not engine.exited.is_set(), "Podman, asked again, knows it"
    world.podman.states.clear()
    await world.adopter.relist([world.actor])
    assert engine.exited.is_set()
    assert there


async def test_speculation_that_a_former_daemon_dropped_can_come_back(tmp_path: Path) -> None:
    policy = {"policy": "qps", "drop_above": 8.0, "resume_below": 4.0, "dwell_s": 0.0}
    world = await World.open(tmp_path, speculation=policy)
    await world.found_running()
    await world.adopt()
    assert not world.d.speculating
    assert not world.d.speculate
    asked: list[bool | None] = []

    async def replan(cause: object, *, speculate: bool | None = None) -> None:
        asked.append(speculate)

    world.actor.replan = replan  # type: ignore[method-assign]
    await govern(world.context, [world.actor])
    assert asked == [], "without word from the gateway nothing is known of the load"
    world.gateway.report({"gateway_id": "g", "uptime_s": 1.0, "models": {}})
    world.d.governor = governor.GovernorState(below_since=0.0)
    world.context.automation.pause(world.d.name, "anna")
    await govern(world.context, [world.actor])
    await govern(world.context, [world.actor])
    assert asked == [], "paused"
    assert (await world.codes()).count("would_resume") == 1
    world.context.automation.resume(world.d.name)
    await govern(world.context, [world.actor])
    assert asked == [True]
    await world.close()


async def test_an_engine_may_leave_anything_in_its_socket_folder(world: World) -> None:
    engine = await world.found_running()
    folder = socket_folder(world.paths, engine)
    (folder / "made-by-the-engine").mkdir()
    (folder / "link").symlink_to(world.paths.state_dir)
    remove_files(world.paths, engine)
    assert not folder.exists()
    assert world.paths.state_dir.exists()
    assert world.paths.database.exists()


async def test_an_engine_on_its_way_is_proved_and_not_lost(world: World) -> None:
    engine = await world.found_running()
    await world.store.forget_engine(engine)
    await world.adopt()
    assert [e.state for e in world.d.engines] == [State.LOADING]
    assert world.d.serving is None
    await asyncio.sleep(0)


async def test_what_still_loads_is_promised_what_it_will_take(world: World) -> None:
    """Its memory still looks free: the next model must not be put there."""
    engine = await world.found_running()
    await world.store.forget_engine(engine)  # nobody saw it ready
    await world.adopt()
    assert [e.state for e in world.d.engines] == [State.LOADING]
    assert world.memory.adopted == {engine: True}


async def test_what_serves_has_taken_its_memory(world: World) -> None:
    engine = await world.found_running()
    await world.adopt()
    assert world.memory.adopted == {engine: False}


async def test_one_that_cannot_be_watched_keeps_no_other_from_being_adopted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await world.found_running()
    other = "b" * 16
    write_key(world.paths, other, "k")
    found = world.container(other, world.runner.children[0].pid)
    world.podman.states.append(replace(found, labels={**found.labels, container_labels.GENERATION: "2"}))
    follow = Engine.follow

    def no_descriptors(self: Engine, pid: int) -> None:
        if self.id == other:
            raise OSError(errno.EMFILE, "too many open files")
        follow(self, pid)

    monkeypatch.setattr(Engine, "follow", no_descriptors)
    await world.adopt()
    assert [e.id for e in world.d.engines] == [engine]
    await until(lambda: world.podman.removed == [f"c-{other}"], LIMIT, "what cannot be watched is replaced")
    assert world.podman.stopped == [f"c-{other}"]


async def test_a_wish_that_came_while_it_was_looked_at_is_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database was lost, and somebody stops the model before it is adopted."""
    await world.found_running(desired=None)
    get = _Healthy.get

    async def stopped_meanwhile(self: _Healthy, path: str, *, timeout: float) -> object:
        await world.store.set_desired("m", Desired.STOPPED, "p", 1.0)
        await world.actor.set_desired(Desired.STOPPED, "p")
        return await get(self, path, timeout=timeout)

    monkeypatch.setattr(_Healthy, "get", stopped_meanwhile)
    await world.adopt()
    (row,) = await world.store.desired()
    assert (world.d.desired, world.d.desired_by, row.desired) == (Desired.STOPPED, "p", Desired.STOPPED)
