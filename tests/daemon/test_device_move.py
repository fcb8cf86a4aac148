"""A GPU is lost and its engine comes up on another one of the machine, or waits where no other takes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from hosts.device_health import STEADY, Health, Verdict
from orchestrator import device_policy
from orchestrator.actor import Actor
from orchestrator.context import NoDemands
from orchestrator.deployment import Deployment
from orchestrator.device_policy import Gpu, Lost
from orchestrator.errors import DoesNotFit, Refused
from orchestrator.host_watch import HostWatch
from orchestrator.plan import Plan
from orchestrator.timing import Timing
from orchestrator.views import Desired, State
from tests.daemon.gpu_scene import ONE, QUICK, TWO, Scene, facts, gpu, restarted
from tests.daemon.world import LIMIT, World, a_plan
from tests.hosts.trees import Tree
from tests.waiting import until


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = await World.open(tmp_path, QUICK)
    yield made
    await made.close()


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "root").machine()


class Elsewhere(Scene):
    """The actor asks about the other GPU too; the planner's next answer is for that one."""

    def __init__(self, world: World, host: HostWatch) -> None:
        super().__init__(world, host)
        world.gpus.after_loss, world.gpus.taken = self.gate.after_loss, self.gate.taken
        world.gpus.named = self.gate.named
        self.other = a_plan(devices=("nvidia.com/gpu=1",))


@pytest.fixture
async def elsewhere(world: World, tree: Tree) -> AsyncIterator[Elsewhere]:
    made = Elsewhere(world, HostWatch(facts(gpu(ONE), gpu(TWO, 1)), Timing(), tree.roots))
    yield made
    await made.watch.close()
    await made.host.close()


async def told_of(scene: Scene, code: str) -> list[str]:
    return [e.text async for e in scene.world.journal.follow() if e.code == code]


async def test_it_comes_up_on_the_other_gpu_at_once_and_stays_there(elsewhere: Elsewhere) -> None:
    engine = await elsewhere.world.started()
    elsewhere.world.planner.answer = elsewhere.other
    elsewhere.event(79)
    other = await restarted(elsewhere, engine)
    assert elsewhere.gate.taken(other.plan) == {TWO}
    assert await told_of(elsewhere, "other_gpu") == [f"m goes to RTX 3090 at {TWO} instead of RTX 3090 at {ONE}"]
    codes = await elsewhere.world.codes()
    assert "held" not in codes
    assert codes.index("failed") < codes.index("stopped") < codes.index("other_gpu") < codes.index("planned", 5)
    for _ in range(STEADY):
        elsewhere.reading()
    assert elsewhere.issues == []
    assert elsewhere.world.d.serving_engine is other


async def test_where_it_does_not_fit_it_waits_for_its_own_and_no_failure_is_counted(elsewhere: Elsewhere) -> None:
    engine = await elsewhere.world.started()
    elsewhere.world.planner.answer = Refused("nothing can be launched for m: too big")
    elsewhere.event(79)
    await elsewhere.world.until_code("held")
    elsewhere.world.actor.wake()
    await until(lambda: not elsewhere.world.d.busy, LIMIT, "it was asked")
    assert await told_of(elsewhere, "no_other_gpu") == [
        "m waits for its GPU, for no other takes it: nothing can be launched for m: too big"
    ]
    view = elsewhere.world.actor.view()
    assert view.reason is not None
    assert (view.state, view.reason.code, elsewhere.world.d.failures.parked) == (State.FAILED, "gpu_lost", False)
    for _ in range(STEADY):
        elsewhere.reading()
    again = await restarted(elsewhere, engine)
    assert elsewhere.gate.taken(again.plan) == {ONE}


async def test_the_planner_is_asked_again_after_a_while_and_at_once_when_another_gpu_comes(
    elsewhere: Elsewhere,
) -> None:
    asked = 0

    async def plan(*_: object, **__: object) -> Plan:
        nonlocal asked
        asked += 1
        raise Refused("too big")

    await elsewhere.world.started()
    elsewhere.world.planner.plan = plan  # type: ignore[method-assign]
    elsewhere.event(79)
    await elsewhere.world.until_code("held")
    for _ in range(20):
        elsewhere.world.actor.wake()
        await asyncio.sleep(0)
    assert asked == 1
    asking = elsewhere.world.actor._steps.elsewhere
    assert asking.cause() is None
    asking._again_at = 0.0
    cause = asking.cause()
    assert cause is not None
    assert cause.evidence == {"lost": [ONE], "left": [TWO]}
    assert (await told_of(elsewhere, "no_other_gpu")) == ["m waits for its GPU, for no other takes it: too big"]
    elsewhere.event(79, pci=TWO)
    assert asking.cause() is None, "no other is left"


async def test_paused_it_is_moved_nowhere(elsewhere: Elsewhere) -> None:
    await elsewhere.world.started()
    elsewhere.world.planner.answer = elsewhere.other
    elsewhere.world.context.automation.pause("m", "t")
    elsewhere.event(79)
    await elsewhere.world.until_code("held")
    assert "other_gpu" not in await elsewhere.world.codes()
    assert elsewhere.world.runner.ups == 1


def one_of(pci: str, health: Health, *, devices: tuple[str, ...] = ("d",), held: str | None = None) -> Gpu:
    return Gpu(pci, "nvidia", devices, Verdict(health, "r"), held=held)


@pytest.mark.parametrize(
    ("other", "action", "reason"),
    [
        (one_of(TWO, Health.OK, devices=("e",)), Lost.ASK, "others_are_well"),
        (one_of(TWO, Health.DEGRADED, devices=("e",)), Lost.ASK, "others_are_well"),
        (one_of(TWO, Health.LOST, devices=("e",)), Lost.WAIT, "no_other_gpu"),
        (one_of(TWO, Health.OK, devices=()), Lost.WAIT, "no_other_gpu"),
        (one_of(TWO, Health.OK, devices=("e",), held="m holds it"), Lost.WAIT, "no_other_gpu"),
    ],
)
def test_after_a_loss_the_planner_is_asked_where_another_gpu_is_well(other: Gpu, action: Lost, reason: str) -> None:
    decision = device_policy.after_loss(("d",), [one_of(ONE, Health.LOST), other])
    assert (decision.action, decision.reason) == (action, reason)
    assert decision.evidence["lost"] == [ONE]
    well = device_policy.after_loss(("d",), [one_of(ONE, Health.OK), other])
    assert (well.action, well.reason) == (Lost.WAIT, "not_lost")


class Full(NoDemands):
    """Where others are on some GPUs, and stay."""

    def __init__(self) -> None:
        self.gpus: set[str] = set()

    def room_for(
        self, d: Deployment, plan: Plan, seen: Callable[[State, str], None]
    ) -> AbstractAsyncContextManager[None]:
        if self.gpus & set(plan.devices):
            raise DoesNotFit(f"there is no room for {d.name}")
        return nullcontext()


async def unloaded(scene: Elsewhere) -> Full:
    """It has served on the first GPU, and that is somebody else's now."""
    world, full = scene.world, Full()
    world.actor = Actor(world.d, replace(world.context, demand=full))
    await world.started()
    await world.actor.set_desired(Desired.STOPPED, "t")
    await until(lambda: not world.d.live(), LIMIT, "stopped")
    full.gpus |= {"nvidia.com/gpu=0"}
    return full


async def test_what_has_served_goes_where_there_is_room(elsewhere: Elsewhere) -> None:
    await unloaded(elsewhere)
    world = elsewhere.world
    world.planner.answer = elsewhere.other
    await world.actor.set_desired(Desired.RUNNING, "t")
    await until(lambda: world.d.serving_engine is not None, LIMIT, "it serves")
    assert elsewhere.gate.taken(world.d.engines[0].plan) == {TWO}
    assert await told_of(elsewhere, "other_gpu") == [f"m goes to RTX 3090 at {TWO} instead of RTX 3090 at {ONE}"]
    assert "failed" not in await world.codes()


async def test_what_has_served_gives_nothing_up_for_another_place(elsewhere: Elsewhere) -> None:
    await unloaded(elsewhere)
    world = elsewhere.world
    world.planner.answer = replace(elsewhere.other, parallel=elsewhere.other.parallel + 1)
    await world.actor.set_desired(Desired.RUNNING, "t")
    await world.until_code("failed")
    assert world.d.wanted is not None
    assert elsewhere.gate.taken(world.d.wanted) == {ONE}
    assert "other_gpu" not in await world.codes()


async def test_where_it_does_not_get_it_goes_back_to_its_own(elsewhere: Elsewhere) -> None:
    full = await unloaded(elsewhere)
    full.gpus |= {"nvidia.com/gpu=1"}
    world = elsewhere.world
    world.planner.answer = elsewhere.other
    await world.actor.set_desired(Desired.RUNNING, "t")
    await world.until_code("failed")
    assert world.d.wanted is not None
    assert elsewhere.gate.taken(world.d.wanted) == {ONE}
    full.gpus.clear()
    await world.actor.set_desired(Desired.RUNNING, "t")
    await until(lambda: world.d.serving_engine is not None, LIMIT, "it serves")
    assert elsewhere.gate.taken(world.d.engines[0].plan) == {ONE}
