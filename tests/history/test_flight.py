"""One start for any number of callers, and engines that cannot be ended.

The engines are `sleep` processes and the planner answers what the test wants (`tests/daemon/world.py`): it is about
moments that real engines do not stand still for.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from containers.errors import PodmanFailed
from orchestrator.context import Cause
from orchestrator.errors import EngineFailed, ModelFileError
from orchestrator.flight import CALLED_OFF, DAEMON_ENDS, Outcome
from orchestrator.views import Desired, State
from tests.daemon.world import LIMIT, World, a_plan
from tests.history.conftest import hold_up
from tests.waiting import until

MANY = 20


async def all_start(world: World) -> list[Outcome]:
    async def one(n: int) -> Outcome:
        await world.actor.set_desired(Desired.RUNNING, f"caller-{n}")
        return await world.actor.outcome()

    return list(await asyncio.wait_for(asyncio.gather(*(one(n) for n in range(MANY))), LIMIT))


async def test_many_callers_are_one_start_and_hear_the_same(world: World) -> None:
    world.run()
    outcomes = await all_start(world)
    assert {o.generation for o in outcomes} == {world.d.serving}
    assert (world.runner.ups, len(set(map(id, outcomes)))) == (1, 1)
    again = await all_start(world)
    assert ({o.generation for o in again}, world.runner.ups) == ({world.d.serving}, 1), "it serves: nothing is started"


async def test_many_callers_hear_of_the_same_failure(world: World) -> None:
    world.runner.fail_up = PodmanFailed("no")
    world.run()
    outcomes = await all_start(world)
    assert [o.why and o.why.code for o in outcomes] == ["podman_failed"] * MANY
    assert (world.runner.ups, world.d.failures.count) == (1, 1)


async def test_who_asks_during_a_start_joins_it_and_forgives_nothing(world: World) -> None:
    """A start after two failures is on its way: asking for it is no reason to count from nothing."""
    world.runner.create_may_end = asyncio.Event()
    world.run()
    await world.actor.set_desired(Desired.RUNNING, "t")
    await until(lambda: world.runner.ups == 1, LIMIT, "a create is on its way")
    world.d.failures = replace(world.d.failures, count=2)
    joining = asyncio.ensure_future(all_start(world))
    await until(lambda: world.d.desired_by == f"caller-{MANY - 1}", LIMIT, "all have asked")
    world.runner.fail_up = PodmanFailed("no")
    assert world.d.failures.count == 2
    world.runner.create_may_end.set()
    assert {o.generation for o in await joining} == {1}
    assert world.runner.ups == 1


async def test_a_stop_calls_the_start_off_for_all_who_wait(world: World) -> None:
    held = hold_up(world)
    world.run()
    waiting = asyncio.ensure_future(all_start(world))
    await until(lambda: world.runner.ups == 1, LIMIT, "on its way")
    await world.actor.set_desired(Desired.STOPPED, "somebody")
    outcomes = await waiting
    assert {o.why.code if o.why else None for o in outcomes} == {CALLED_OFF}
    assert "somebody" in str(outcomes[0].why)
    await asyncio.wait_for(world.actor.settled(), LIMIT)
    assert held.cancelled
    assert world.d.engines == []


async def test_who_stops_waiting_changes_nothing_for_the_others(world: World) -> None:
    world.runner.create_may_end = asyncio.Event()
    world.run()
    await world.actor.set_desired(Desired.RUNNING, "t")
    patient, hasty = (asyncio.ensure_future(world.actor.outcome()) for _ in range(2))
    await until(lambda: world.runner.ups == 1, LIMIT, "on its way")
    hasty.cancel()
    world.runner.create_may_end.set()
    assert (await asyncio.wait_for(patient, LIMIT)).generation == 1


async def test_what_only_a_person_can_mend_is_an_outcome_too(world: World) -> None:
    world.planner.answer = ModelFileError("no file")
    world.run()
    assert {o.why and o.why.code for o in await all_start(world)} == {ModelFileError.code}
    late = await asyncio.wait_for(world.actor.outcome(), LIMIT)
    assert late.why is not None
    assert late.why.code == ModelFileError.code, "who comes later is told at once"


async def test_nobody_waits_for_an_actor_that_ends(world: World) -> None:
    hold_up(world)
    world.run()
    waiting = asyncio.ensure_future(all_start(world))
    await until(lambda: world.runner.ups == 1, LIMIT, "on its way")
    assert world.task is not None
    world.task.cancel()
    assert {o.why and o.why.code for o in await waiting} == {DAEMON_ENDS}


# wedged


def wedged() -> EngineFailed:
    return EngineFailed("wedged", "m-1: process 7 outlived the removal of its container", retryable=False, hint="look")


async def test_an_engine_that_cannot_be_ended_is_shown_and_another_starts_beside_it(world: World) -> None:
    engine = await world.started()
    world.runner.fail_down = wedged()
    await world.actor.restart()
    await until(lambda: world.d.serving not in (None, engine.generation), LIMIT, "another serves")
    assert (engine.state, engine.tries) == (State.WEDGED, 1)
    assert world.d.failures.count == 0, "that it does not end is no failure of the next one"
    assert [e.state for e in world.actor.view().engines] == [State.WEDGED, State.READY]
    world.runner.fail_down = None
    engine.again_at = None
    world.actor.wake()
    await until(lambda: len(world.d.engines) == 1, LIMIT, "gone at last")
    assert world.d.serving_engine is not None


async def test_a_stop_tells_that_it_is_wedged_and_tries_again_more_and_more_rarely(world: World) -> None:
    engine = await world.started()
    world.runner.fail_down = wedged()
    await world.actor.set_desired(Desired.STOPPED, "t")
    await until(lambda: world.d.shown_state() is State.WEDGED, LIMIT, "wedged")
    view = world.actor.view()
    assert view.reason is not None
    assert (view.state, view.reason.code, world.runner.downs) == (State.WEDGED, "wedged", 1)
    first = engine.again_at
    assert first is not None
    engine.again_at = None
    world.actor.wake()
    await until(lambda: world.runner.downs == 2, LIMIT, "tried again")
    await until(lambda: engine.again_at is not None, LIMIT, "and again later")
    assert (engine.again_at or 0.0) - world.clock.now() > 5.0, "ten seconds, after the first"
    world.runner.fail_down = PodmanFailed("busy")
    await world.actor.set_desired(Desired.STOPPED, "t")  # a person asks: now
    await until(lambda: world.runner.downs == 3, LIMIT, "at once")
    await until(lambda: engine.tries == 3, LIMIT, "Podman's trouble is its own, and holds nothing else up")
    assert (world.d.stuck, world.journal_codes().count("failed")) == (0, 1)


async def test_the_end_of_a_wedged_process_is_seen_at_once(world: World) -> None:
    engine = await world.started()
    world.runner.fail_down = wedged()
    await world.actor.set_desired(Desired.STOPPED, "t")
    await until(lambda: engine.state is State.WEDGED, LIMIT, "wedged")
    engine.again_at = world.clock.now() + 300.0
    world.runner.fail_down = None
    world.runner.kill()
    await until(lambda: world.d.engines == [], LIMIT, "gone")
    assert world.d.shown_state() is State.STOPPED
    assert world.d.reason is None


async def test_what_is_left_of_a_process_that_ended_is_looked_at_more_and_more_rarely_too(world: World) -> None:
    """Its memory is held by nobody, and then Podman is away: each try fails at once, and none follows at once."""
    engine = await world.started()
    world.runner.fail_down = wedged()
    world.runner.kill()
    await until(lambda: engine.state is State.WEDGED, LIMIT, "wedged")
    for failure in (wedged(), PodmanFailed("nobody answers")):
        world.runner.fail_down, tries = failure, engine.tries
        engine.again_at = None
        world.actor.wake()
        await until(lambda tries=tries: engine.tries > tries, LIMIT, "tried again")  # type: ignore[misc]
        assert engine.facts(world.clock.now()).again_in, "and not at once again"
    downs = world.runner.downs
    for _ in range(20):
        world.actor.wake()
        await asyncio.sleep(0)
    assert world.runner.downs == downs


async def test_a_switch_whose_old_engine_is_wedged_goes_on(world: World) -> None:
    """Break before make: what was to make room did not go. The new one starts if there is room for it all the same."""
    old = await world.started()
    world.memory.left, world.runner.fail_down = 0, wedged()
    world.planner.answer = a_plan(argv=("--other",))
    await world.actor.replan(Cause("apply", "t"))
    await until(lambda: world.d.serving not in (None, old.generation), LIMIT, "the new one serves")
    assert old.state is State.WEDGED
    assert "invariant_broken" not in world.journal_codes()


async def test_a_take_down_that_was_begun_is_joined_and_not_begun_again(world: World) -> None:
    """A switch is called off while it removes the old engine: that goes on, and the stop waits for the same one."""
    await world.started()
    begun, may_end = asyncio.Event(), asyncio.Event()
    calls = 0
    plain = world.runner.take_down

    async def slow(engine: object) -> None:
        nonlocal calls
        calls += 1
        begun.set()
        await may_end.wait()
        await plain(engine)  # type: ignore[arg-type]

    world.runner.take_down = slow  # type: ignore[method-assign]
    world.memory.left = 0
    world.planner.answer = a_plan(argv=("--other",))
    await world.actor.replan(Cause("apply", "t"))
    await asyncio.wait_for(begun.wait(), LIMIT)
    await world.actor.set_desired(Desired.STOPPED, "t")
    await world.until_code("start_aborted")
    may_end.set()
    await asyncio.wait_for(world.actor.settled(), LIMIT)
    assert calls == 1
