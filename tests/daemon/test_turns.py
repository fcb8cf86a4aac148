"""Turns: the most important first, and nobody waits for what cannot go on."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from containers.errors import PodmanFailed
from orchestrator.actor import Actor
from orchestrator.deployment import Deployment, Transfer
from orchestrator.engine import Engine
from orchestrator.lifecycle import Step
from orchestrator.plan import Plan
from orchestrator.registry import Registry
from orchestrator.turns import Claim, Turns, in_order
from orchestrator.views import Desired, State, Why
from tests.daemon.world import LIMIT, Planner, World, a_plan, an_entry
from tests.waiting import until


def test_by_priority_then_by_name() -> None:
    assert in_order([Claim("b", 0), Claim("a", 0), Claim("z", 5), Claim("c", -1)]) == ("z", "a", "b", "c")


@given(st.permutations(["a", "b", "c", "d"]), st.permutations(["a", "b", "c", "d"]))
def test_whoever_leaves_the_first_in_the_queue_may_go(order: list[str], leaving: list[str]) -> None:
    turns, woken = Turns(), set[str]()
    turns.queue(order, {name: lambda name=name: woken.add(name) for name in order})  # type: ignore[misc]
    left = list(order)
    for name in leaving:
        assert [n for n in left if turns.before(n) is None] == left[:1]
        woken.clear()
        turns.leave(name)
        left.remove(name)
        assert woken == set(left)
    assert turns.before("a") is None
    turns.leave("unknown")


def queued(world: World) -> Turns:
    """The actor's deployment is to run, after another one."""
    world.d.desired = Desired.RUNNING
    turns = world.context.turns
    turns.queue(("other", "m"), {"other": lambda: None, "m": world.actor.wake})
    world.run()
    return turns


async def test_a_deployment_waits_and_says_for_whom(world: World) -> None:
    turns = queued(world)
    await until(lambda: world.d.after == "other", LIMIT, "it waits")
    view = world.actor.view()
    assert view.reason is not None
    assert (view.state, view.reason.text) == (State.CREATING, "waiting for its turn (after other)")
    assert world.route().hold, "requests for it may wait too"
    assert (world.d.wanted, world.runner.ups) == (None, 0), "it is planned when its turn has come"
    turns.leave("other")
    await until(lambda: world.d.serving is not None, LIMIT, "it serves")
    assert world.actor.view().reason is None


async def test_what_a_person_starts_goes_at_once(world: World) -> None:
    queued(world)
    await until(lambda: world.d.after == "other", LIMIT, "it waits")
    await world.actor.set_desired(Desired.RUNNING, "t")
    await until(lambda: world.d.serving is not None, LIMIT, "it serves")


async def test_a_failure_and_a_stop_let_the_next_one_start(world: World) -> None:
    turns = world.context.turns
    turns.queue(("m", "next"), {"m": world.actor.wake, "next": lambda: None})
    world.d.desired = Desired.RUNNING
    world.runner.fail_up = PodmanFailed("no")
    world.run()
    await until(lambda: turns.before("next") is None, LIMIT, "the next one's turn after a failure")
    turns.queue(("m", "next"), {"m": world.actor.wake, "next": lambda: None})
    await world.actor.set_desired(Desired.STOPPED, "t")
    assert turns.before("next") is None


async def test_who_fetches_an_image_keeps_nobody_waiting(world: World) -> None:
    """Fifteen gigabytes from a registry are no load."""
    turns = world.context.turns
    turns.queue(("m", "next"), {"m": world.actor.wake, "next": lambda: None})
    world.d.desired = Desired.RUNNING
    world.actor.take_turn()
    assert turns.before("next") == "m"
    world.d.transfer = Transfer(1, None, 0.0)
    world.actor.take_turn()
    assert turns.before("next") is None


async def test_a_suspected_one_keeps_nobody_waiting(world: World) -> None:
    await world.marks.forget("m", "")
    (world.paths.loading).mkdir(exist_ok=True)
    (world.paths.loading / "m.json").write_text("damaged")
    world.marks.inherit()
    world.actor.deployment = Deployment(an_entry(), "h", Desired.RUNNING, suspicion=world.marks.suspicion("m"))
    turns = world.context.turns
    turns.queue(("m", "next"), {"m": world.actor.wake, "next": lambda: None})
    world.actor.take_turn()
    assert turns.before("next") is None


async def test_what_a_person_restarts_goes_at_once(world: World) -> None:
    queued(world)
    await until(lambda: world.d.after == "other", LIMIT, "it waits")
    await world.actor.restart()
    await until(lambda: world.d.serving is not None, LIMIT, "it serves")


async def test_who_was_loading_when_the_daemon_came_goes_before_the_others(world: World) -> None:
    """The next one would be planned for memory that it is about to take."""
    nobody: Any = None
    registry = Registry(world.context, nobody, "h")
    loading = Actor(Deployment(an_entry(), "h", Desired.RUNNING), world.context)
    loading.adopt(Engine("e", "m", 1, a_plan(), "k", None, None, 1.0, State.LOADING))
    urgent = Actor(Deployment(an_entry(name="urgent", priority=9), "h", Desired.RUNNING), world.context)
    registry._actors = {"m": loading, "urgent": urgent}
    registry._take_turns()
    assert (loading.deployment.after, urgent.deployment.after) == (None, "m")
    assert loading._decide().action is Step.CONTINUE
    assert urgent._decide().action is Step.WAIT
    loading.deployment.engines[0].move(State.FAILED)
    loading.deployment.reason = Why("failed", "no")
    loading.take_turn()
    assert urgent._decide().action is Step.PLAN


async def test_a_registry_that_says_nothing_keeps_nobody_waiting(world: World) -> None:
    class Silent:
        pulls_at_start = True

        async def fetch(self, image: str, **_: object) -> None:
            await asyncio.Event().wait()

    class Fetching(Planner):
        async def plan(self, *_: object, fetch: Any = None, **__: object) -> Plan:
            await fetch("registry.example/x:1")
            return a_plan()

    images: Any = Silent()
    planning: Any = Fetching()
    turns = Turns()
    context = dataclasses.replace(world.context, images=images, planning=planning, turns=turns)
    actor = Actor(Deployment(an_entry(), "h", Desired.RUNNING), context)
    turns.queue(("m", "next"), {"m": actor.wake, "next": lambda: None})
    task = asyncio.create_task(actor.run())
    await until(lambda: actor.deployment.transfer, LIMIT, "it waits for the registry")
    actor.wake()  # the next round, which would come by itself
    await until(lambda: turns.before("next") is None, LIMIT, "the next one's turn")
    task.cancel()
    await asyncio.wait([task])
