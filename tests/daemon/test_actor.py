"""The task that owns a deployment, at its bad moments: no hot loop, no dead end, no lost wish."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from containers.errors import PodmanFailed, PodmanUnreachable
from orchestrator.actor import Actor
from orchestrator.context import Cause, NoDemands
from orchestrator.deployment import Deployment
from orchestrator.errors import MEMORY_GUARD, DatabaseFailed, DoesNotFit, EngineFailed, ModelFileError
from orchestrator.routing import Route
from orchestrator.store import Store
from orchestrator.timing import Timing
from orchestrator.views import Desired, State
from tests.daemon.world import LIMIT, World, a_plan, an_entry
from tests.waiting import until

OTHER = a_plan(argv=("--other",))
FULL = OSError(28, "No space left on device")


async def some_rounds(world: World) -> None:
    """Let a loop that does not pause show itself: hundreds of turns of the event loop."""
    for _ in range(300):
        await asyncio.sleep(0)
    await world.journal.flush()
    for _ in range(300):
        await asyncio.sleep(0)


async def test_a_crash_loses_its_route_in_the_same_moment(world: World) -> None:
    """At the full time scale, where the next round would be five seconds away. (The bar itself, 300 ms, is
    held against a real engine in `tests/stack/test_bars.py`.)"""
    engine = await world.started()
    begun = world.clock.now()
    world.runner.kill()
    await until(lambda: not any(e.admit for e in world.route().engines), LIMIT, "the route is gone")
    await world.until_code("engine_ended")
    assert world.clock.now() - begun < 2.5
    await until(lambda: world.d.serving not in (None, engine.generation), LIMIT, "a new engine serves")


async def test_requests_are_held_over_the_first_pause_after_a_crash(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await world.started()
    seen: list[Route] = []
    publish = world.routing.publish

    def spy(name: str, route: Route | None) -> bool:
        if route is not None:
            seen.append(route)
        return publish(name, route)

    monkeypatch.setattr(world.routing, "publish", spy)
    world.runner.kill()
    await until(lambda: world.d.serving not in (None, engine.generation), LIMIT, "a new engine serves")
    assert all(route.hold or any(e.admit for e in route.engines) for route in seen), seen


async def test_a_long_pause_is_refused_instead_of_held(world: World) -> None:
    world.runner.fail_up = PodmanFailed("no")
    world.run()
    await asyncio.sleep(0)
    await world.actor.set_desired(Desired.RUNNING, "t")
    await until(lambda: world.d.failures.count >= 1, LIMIT, "a failure")
    world.d.failures = replace(world.d.failures, retry_at=world.clock.now() + 100, delay=100.0)
    await until(lambda: not world.route().hold, LIMIT, "nobody is held any more, once the step is over")
    assert world.route().retry_after_s == 100.0


async def test_a_restart_without_podman_pauses_between_tries(world: World) -> None:
    await world.started()
    world.runner.fail_down = PodmanUnreachable("down")
    await world.actor.restart()
    await until(lambda: world.runner.downs == 1, LIMIT, "a try")
    await some_rounds(world)
    assert world.runner.downs == 1
    assert world.d.reason is not None
    assert world.d.reason.code == "podman_unreachable"


async def test_an_error_of_the_system_in_a_start_is_backed_off_from(world: World) -> None:
    world.runner.fail_up = FULL
    world.run()
    await asyncio.sleep(0)
    await world.actor.set_desired(Desired.RUNNING, "t")
    await until(lambda: world.runner.downs == 1, LIMIT, "what was left is cleaned")
    await some_rounds(world)
    assert world.runner.ups == 1
    assert world.d.engines == []


async def test_an_error_of_the_system_in_a_switch_keeps_the_old_engine(world: World) -> None:
    engine = await world.started()
    world.runner.fail_up, world.planner.answer = FULL, OTHER
    await world.actor.replan(Cause("apply", "t"))
    await world.until_code("switch_taken_back")
    await until(lambda: len(world.d.engines) == 1, LIMIT, "the new engine's rest is gone")
    await some_rounds(world)
    assert world.runner.ups == 2
    assert world.d.serving == engine.generation
    assert any(e.admit for e in world.route().engines)


async def test_a_full_disk_costs_a_switch_and_not_the_service(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = await world.started()
    await world.store._db.execute("PRAGMA query_only = ON")
    world.planner.answer = OTHER
    await world.actor.replan(Cause("apply", "t"))
    await world.until_code("switch_taken_back")
    assert world.d.serving == engine.generation
    await world.actor.set_desired(Desired.STOPPED, "t")
    await until(lambda: world.d.engines == [], LIMIT, "a stop goes through all the same")
    assert "not_noted" in await world.codes()


async def test_a_mended_file_and_a_new_plan_end_the_waiting(world: World) -> None:
    world.planner.answer = ModelFileError("no file")
    world.run()
    await asyncio.sleep(0)
    await world.actor.set_desired(Desired.RUNNING, "t")
    await until(lambda: world.d.failures.parked, LIMIT, "parked")
    world.planner.answer = a_plan()
    await world.actor.define(an_entry(context=7), Cause("reload", "configuration"))
    await until(lambda: world.d.serving is not None, LIMIT, "an engine serves")
    assert world.d.reason is None


async def test_a_cancellation_in_the_middle_of_an_abort_ends_the_actor(world: World) -> None:
    world.runner.create_may_end = asyncio.Event()
    world.run()
    await asyncio.sleep(0)
    await world.actor.set_desired(Desired.RUNNING, "t")
    await until(lambda: world.runner.ups == 1, LIMIT, "a create is on its way")
    await world.actor.set_desired(Desired.STOPPED, "t")
    for _ in range(5):
        await asyncio.sleep(0)
    assert world.task is not None
    world.task.cancel()
    world.runner.create_may_end.set()
    done, _ = await asyncio.wait([world.task], timeout=LIMIT)
    assert done, "a daemon that is told to end must end"


async def test_a_restart_ends_a_drain(world: World) -> None:
    engine = await world.started()
    await world.actor.drain()
    assert not any(e.admit for e in world.route().engines)
    await world.actor.restart()
    await until(lambda: world.d.serving not in (None, engine.generation), LIMIT, "a new engine serves")
    assert any(e.admit for e in world.route().engines)


async def test_a_clean_up_that_is_tried_again_is_one_failure(world: World) -> None:
    await world.started()
    world.runner.fail_down = PodmanFailed("busy")
    world.runner.kill()
    await until(lambda: world.runner.downs >= 2, LIMIT, "two tries")
    assert (world.d.failures.count, world.d.restarts) == (1, 1)


async def test_a_switch_called_off_in_its_drain_is_no_dead_end(world: World) -> None:
    """Break before make, a stop while it drains, and the same plan wanted again before the actor looked."""
    old = await world.started()
    world.runner.drain_may_end, world.memory.left = asyncio.Event(), 0
    world.planner.answer = OTHER
    await world.actor.replan(Cause("apply", "t"))
    await until(lambda: old.state is State.DRAINING, LIMIT, "draining for the switch")
    world.planner.answer = old.plan
    wishes = [
        asyncio.ensure_future(wish)
        for wish in (
            world.actor.set_desired(Desired.STOPPED, "t"),
            world.actor.set_desired(Desired.RUNNING, "t"),
            world.actor.replan(Cause("apply", "t")),
        )
    ]
    await asyncio.wait(wishes)
    world.runner.drain_may_end.set()
    await until(lambda: any(e.admit for e in world.route().engines), LIMIT, "requests are admitted again")


async def test_a_stop_leaves_nothing_and_a_halt_leaves_the_wish(world: World) -> None:
    await world.started()
    await world.actor.halt()
    await asyncio.wait_for(world.actor.settled(), LIMIT)
    assert (world.d.engines, world.d.desired) == ([], Desired.RUNNING)
    async with aclosing(world.journal.follow()) as entries:  # type: ignore[type-var]
        told = [event.text async for event in entries if event.code == "stopped"]
    assert told == ["m-1 is gone (daemon_ends)"], "nobody wished it stopped"


@pytest.mark.slow
async def test_a_database_that_is_only_locked_is_no_bad_one(tmp_path: Path) -> None:
    path = tmp_path / "o.db"
    store = await Store.open(path)
    await store.set_desired("m", Desired.RUNNING, "t", 1.0)
    await store.close()
    other = sqlite3.connect(path)
    other.execute("PRAGMA journal_mode = DELETE")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(DatabaseFailed) as refused:
        await Store.open(path)
    other.close()
    assert refused.value.retryable
    assert path.exists()


async def test_what_the_memory_guard_stopped_waits_for_room(world: World) -> None:
    """Its own reason, at once and not "killed"; no further failures while there is no room; then it comes back."""
    engine = await world.started()
    world.room.there = False
    verdict = EngineFailed(MEMORY_GUARD, "stopped to keep the host alive", hint="free some")
    assert world.actor.end_engine(engine, verdict)
    await until(lambda: world.d.serving is None and world.d.engines == [], LIMIT, "gone")
    await until(lambda: world.d.failures.count == 1 and world.d.guarded, LIMIT, "one failure")
    world.d.failures = replace(world.d.failures, retry_at=world.clock.now())
    world.actor.wake()
    await some_rounds(world)
    assert (world.runner.ups, world.d.failures.count) == (1, 1)
    view = world.actor.view()
    assert view.reason is not None
    assert (view.state, view.reason.code) == (State.FAILED, MEMORY_GUARD)
    world.room.there = True
    await world.actor.set_desired(Desired.RUNNING, "t")
    await until(lambda: world.d.serving is not None, LIMIT, "an engine serves again")
    assert world.d.guarded is None


async def test_who_asks_for_what_crashes_the_actor_is_not_kept_waiting(world: World) -> None:
    """The watch over health asks so: all engines of the host would go unwatched for ever."""
    engine = await world.started()

    def change() -> None:
        raise RuntimeError("a defect")

    async with asyncio.timeout(LIMIT):
        with pytest.raises(RuntimeError, match="a defect"):
            await world.actor._ask(change)
    assert world.task is not None
    await asyncio.wait([world.task])
    assert isinstance(world.task.exception(), RuntimeError)
    world.run()
    await asyncio.sleep(0)
    await world.actor.fail_engines([engine.generation], EngineFailed("engine_stalled", "it has stalled"))
    await until(lambda: world.d.serving not in (None, engine.generation), LIMIT, "a new engine serves")


async def test_an_actor_that_crashed_and_goes_on_still_sees_its_engine_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await world.started()
    publish = world.routing.publish

    def once(name: str, route: Route | None) -> bool:
        monkeypatch.setattr(world.routing, "publish", publish)
        raise RuntimeError("a defect")

    monkeypatch.setattr(world.routing, "publish", once)
    world.actor.wake()
    assert world.task is not None
    await asyncio.wait([world.task])
    assert isinstance(world.task.exception(), RuntimeError)
    world.run()
    await asyncio.sleep(0)
    world.runner.kill()
    await until(engine.exited.is_set, LIMIT, "its end is seen")
    await until(lambda: world.d.serving not in (None, engine.generation), LIMIT, "a new engine serves")


async def test_nobody_waits_for_an_actor_that_has_ended(world: World) -> None:
    """A request that met a model at the moment in which a reload took it away."""
    await world.started()
    assert world.task is not None
    world.task.cancel()
    asked = asyncio.ensure_future(world.actor.drain())
    await asyncio.wait([world.task])
    await asyncio.wait_for(asked, LIMIT)
    await asyncio.wait_for(world.actor.drain(), LIMIT)


async def test_a_first_plan_for_memory_that_another_took_meanwhile_is_made_anew(world: World) -> None:
    """Two models that are started at the same moment are planned for the same memory."""
    full = DoesNotFit("needs 60 GiB and 40 GiB are left")
    full.retryable = True
    world.runner.fail_up = full
    world.run()
    await world.actor.set_desired(Desired.RUNNING, "t")
    await world.until_code("failed")
    assert world.d.reason is not None
    assert world.d.reason.code == "too_big"
    world.planner.answer, world.runner.fail_up = OTHER, None
    await until(lambda: world.d.serving_engine is not None, LIMIT, "it serves")
    assert world.d.serving_engine is not None
    assert world.d.serving_engine.plan.digest == OTHER.digest


async def test_a_plan_that_has_served_waits_for_its_memory(tmp_path: Path) -> None:
    world = await World.open(tmp_path, Timing(backoff_first=0.02, backoff_next=0.02, backoff_max=0.02))
    engine = await world.started()
    full = DoesNotFit("needs 60 GiB and 40 GiB are left")
    full.retryable = True
    world.runner.fail_up = full
    world.planner.answer = OTHER
    world.runner.kill()
    await until(lambda: world.d.reason is not None and world.d.reason.code == "too_big", LIMIT, "no room")
    world.runner.fail_up = None
    await until(lambda: world.d.serving not in (None, engine.generation), LIMIT, "it serves again")
    assert world.d.serving_engine is not None
    assert world.d.serving_engine.plan.digest == engine.plan.digest
    await world.close()


async def test_a_switch_does_not_take_the_room_that_others_were_sent_away_for(world: World) -> None:
    """It would bring up the new engine beside the old one, in memory that is kept for another start."""
    world.memory.left = 10

    class Kept(NoDemands):
        def kept(self, d: Deployment, devices: Sequence[str]) -> int:
            return 9

    world.actor = Actor(world.d, replace(world.context, demand=Kept()))
    await world.started()
    world.planner.answer = a_plan(2, argv=("--other",))
    await world.actor.replan(Cause("apply", "t"))
    await world.until_code("switch_done")
    (begun,) = [event for event in world.journal._recent if event.code == "switch_started"]
    assert (begun.evidence["how"], begun.evidence["free_bytes"]) == ("break_before_make", 1)
