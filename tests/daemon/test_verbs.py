"""What a person may ask at a bad moment, and what is refused because it would do harm."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orchestrator.engine import Engine
from orchestrator.errors import DeviceRefused
from orchestrator.verbs import Verbs
from orchestrator.views import Desired, Why
from tests.daemon.world import LIMIT, World, a_plan
from tests.waiting import until

MISMATCH = Why("driver_mismatch", "the driver was upgraded under its kernel module", "reboot")


class Only:
    """A registry with one actor."""

    def __init__(self, world: World) -> None:
        self._actor = world.actor

    def get(self, name: str) -> Any:
        return self._actor

    known = get


def verbs(world: World) -> Verbs:
    registry: Any = Only(world)
    return Verbs(world.context, registry)


async def test_what_serves_is_not_restarted_into_a_hold(world: World) -> None:
    """Its engine has the driver that it began with; a new one would not come up before a reboot."""
    engine = await world.started()
    world.gpus.bar = lambda _: MISMATCH
    with pytest.raises(DeviceRefused) as refused:
        await verbs(world).restart("m", author="t")
    assert (refused.value.code, refused.value.hint) == ("driver_mismatch", "reboot")
    assert world.d.serving == engine.generation
    world.gpus.bar = lambda _: None
    await verbs(world).restart("m", author="t")


async def test_a_forced_start_leaves_the_mark_of_what_is_being_loaded(world: World) -> None:
    """If the host goes down under it now, that has to be known."""
    world.d.desired = Desired.RUNNING
    engine = Engine("e", "m", 1, a_plan(), "k", None, None, 1.0)
    world.d.engines.append(engine)
    await world.marks.place(engine)
    await verbs(world).set_desired("m", Desired.RUNNING, author="t", force=True)
    assert (world.paths.loading / "m.json").exists()


async def creating(world: World) -> tuple[Verbs, asyncio.Event]:
    """A create is on its way that cannot be cut off before the event."""
    world.runner.create_may_end = may_end = asyncio.Event()
    asks = verbs(world)
    world.run()
    await asks.set_desired("m", Desired.RUNNING, author="p")
    await until(lambda: world.runner.ups == 1, LIMIT, "a create is on its way")
    return asks, may_end


async def test_of_two_that_ask_at_once_the_database_believes_the_one_that_the_actor_does(world: World) -> None:
    """A stop waits for a create that cannot be cut off; who starts it again meanwhile is heard after it."""
    asks, may_end = await creating(world)
    await asks.set_desired("m", Desired.STOPPED, author="p")
    await until(lambda: "start_aborted" in world.journal_codes(), LIMIT, "it is called off")
    first = asyncio.create_task(asks.set_desired("m", Desired.RUNNING, author="p"))
    await until(lambda: "desired_running" in world.journal_codes()[-3:], LIMIT, "the first is noted")
    second = asyncio.create_task(asks.set_desired("m", Desired.STOPPED, author="p"))
    await asyncio.sleep(0)
    assert not first.done()
    may_end.set()
    await asyncio.gather(first, second)
    (row,) = await world.store.desired()
    assert (world.d.desired, row.desired) == (Desired.STOPPED, Desired.STOPPED)


async def test_a_drain_that_is_not_taken_yet_is_ended_by_a_start(world: World) -> None:
    asks, may_end = await creating(world)
    await asks.restart("m", author="p")
    await until(lambda: "start_aborted" in world.journal_codes(), LIMIT, "it is called off")
    drain = asyncio.create_task(asks.drain("m", author="p"))
    await until(lambda: "drain" in world.journal_codes(), LIMIT, "the drain is noted")
    start = asyncio.create_task(asks.set_desired("m", Desired.RUNNING, author="p"))
    await asyncio.sleep(0)
    assert not drain.done()
    may_end.set()
    await asyncio.gather(drain, start)
    (row,) = await world.store.desired()
    assert (world.d.drained, row.drained) == (False, False)
