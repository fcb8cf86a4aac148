"""What a person may ask at a bad moment, and what is refused because it would do harm."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.engine import Engine
from orchestrator.errors import DeviceRefused
from orchestrator.verbs import Verbs
from orchestrator.views import Desired, Why
from tests.daemon.world import World, a_plan

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
