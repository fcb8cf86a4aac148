"""The memory guard with processes of its own: whose engine it ends, and what it does when it may not."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from hosts.pressure import MemoryPressure
from orchestrator.actor import Actor
from orchestrator.admission import HOST, Admission, host_reserve
from orchestrator.config import GuardSettings
from orchestrator.deployment import Deployment
from orchestrator.engine import Engine
from orchestrator.guard import ISSUE, Guard
from orchestrator.profiles import load
from orchestrator.timing import Timing
from orchestrator.views import State
from tests.daemon.world import LIMIT, World, a_plan, an_entry
from tests.waiting import until

GIB = 2**30
APU, CUDA = load("dankclaw"), load("dankserver")
ON_APU = a_plan(total=GIB, devices=APU.accelerators[0].devices)
ON_CUDA = a_plan(total=GIB, devices=CUDA.accelerators[0].devices)


class Killer:
    """In Podman's place: remembers what it was to kill."""

    def __init__(self) -> None:
        self.killed: list[str] = []

    async def kill(self, container: str) -> bool:
        self.killed.append(container)
        return True


class Scene:
    """A world, and a guard over its actor whose readings the test says."""

    def __init__(self, world: World, facts: Any, settings: GuardSettings) -> None:
        self.world, self.podman = world, Killer()
        self.reading = MemoryPressure(64 * GIB, 0.0, 0)
        world.facts = facts
        runner: Any = world.runner
        runner.podman = self.podman
        self.admission = Admission(lambda: facts)
        self.guard = Guard(
            settings,
            read=lambda: self.reading,
            admission=self.admission,
            runner=runner,
            journal=world.journal,
            issues=world.issues,
            clock=world.clock,
            timing=world.timing,
        )

    async def looks(self, number: int = 1, *, available: int = 64 * GIB) -> None:
        self.reading = MemoryPressure(available, 0.0, 0)
        for _ in range(number):
            await self.guard.look([self.world.actor])


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    with structlog.testing.capture_logs():
        made = await World.open(tmp_path, Timing().scaled(0.01))
        yield made
        await made.close()


async def serving(world: World, plan: Any, facts: Any, **settings: Any) -> Scene:
    scene = Scene(world, facts, GuardSettings(reserve_bytes=8 * GIB, **settings))
    world.planner.answer = plan
    await world.started()
    return scene


@pytest.mark.parametrize("plan", [ON_APU, a_plan()])
async def test_an_engine_on_the_systems_memory_goes(world: World, plan: Any) -> None:
    scene = await serving(world, plan, APU)
    engine = world.d.serving_engine
    assert engine is not None
    world.room.there = False
    await scene.looks(available=7 * GIB)
    assert not engine.exited.is_set()
    assert not world.issues.holds(ISSUE), "one look is no shortage"
    await scene.looks(available=7 * GIB)
    await until(engine.exited.is_set, LIMIT, "killed")
    assert scene.podman.killed == [], "nobody was asked"
    assert world.issues.holds(ISSUE)
    await until(lambda: world.d.guarded, LIMIT, "known")
    await scene.looks(available=7 * GIB)
    assert "engine_gone" in world.journal_codes()
    assert world.d.reason is not None
    assert world.d.reason.code == "memory_guard"

    async def over() -> bool:
        await scene.looks(available=20 * GIB)
        return not world.issues.holds(ISSUE)

    await until(over, LIMIT, "over")


async def test_a_look_waits_for_nothing(world: World) -> None:
    """Neither for the disk, nor for Podman, nor for a thread: on a machine that is short of memory all are slow."""
    scene = await serving(world, ON_APU, APU)
    scene.reading = MemoryPressure(7 * GIB, 0.0, 0)
    for _ in range(3):
        with pytest.raises(StopIteration):
            scene.guard.look([world.actor]).send(None)
    assert "engine_stopped" in world.journal_codes()


async def test_dips_between_two_looks_cost_nobody_an_engine(world: World) -> None:
    scene = await serving(world, ON_APU, APU)
    for _ in range(10):
        await scene.looks(available=GIB)
        await scene.looks(available=20 * GIB)
    assert "engine_stopped" not in world.journal_codes()
    assert not world.issues.holds(ISSUE)


async def test_an_engine_on_a_gpus_own_memory_is_left_alone(world: World) -> None:
    scene = await serving(world, ON_CUDA, CUDA)
    await scene.looks(10, available=GIB)
    engine = world.d.serving_engine
    assert engine is not None
    assert not engine.exited.is_set()
    assert not world.issues.holds(ISSUE)


async def test_switched_off_it_does_nothing(world: World) -> None:
    scene = await serving(world, ON_APU, APU, enabled=False)
    world.room.there = False
    await scene.looks(10, available=GIB)
    assert world.d.serving_engine is not None
    scene.guard.configure(GuardSettings(reserve_bytes=8 * GIB))
    await scene.looks(2, available=GIB)
    await until(lambda: world.d.serving_engine is None, LIMIT, "killed once it is switched on")
    assert world.issues.holds(ISSUE)
    scene.guard.configure(GuardSettings(enabled=False))
    assert not world.issues.holds(ISSUE)


async def test_where_a_signal_is_not_allowed_podman_is_asked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = await serving(world, ON_APU, APU)
    engine = world.d.serving_engine
    assert engine is not None
    assert engine.watch is not None
    monkeypatch.setattr(type(engine.watch), "kill", lambda self: False)
    await scene.looks(2, available=7 * GIB)
    await until(lambda: scene.podman.killed == [engine.container_id], LIMIT, "asked")


async def test_one_that_does_not_go_is_told_of(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.timing = dataclasses.replace(world.timing, guard_kill=0.05)
    scene = await serving(world, ON_APU, APU)
    engine = world.d.serving_engine
    assert engine is not None
    assert engine.watch is not None
    monkeypatch.setattr(type(engine.watch), "kill", lambda self: True)
    await scene.looks(2, available=7 * GIB)

    async def late() -> bool:
        await scene.looks(available=7 * GIB)
        return "engine_not_gone" in world.journal_codes()

    await until(late, LIMIT, "told")
    await scene.looks(5, available=7 * GIB)
    assert world.journal_codes().count("engine_stopped") == 1, "it is not killed twice, and nobody else is there"


async def test_a_signal_reaches_a_process_that_loads(world: World) -> None:
    scene = await serving(world, ON_APU, APU)
    engine = world.d.serving_engine
    assert engine is not None
    engine.state = State.LOADING
    await scene.looks(2, available=7 * GIB)
    await until(engine.exited.is_set, LIMIT, "killed")


def test_no_start_counts_on_memory_that_the_guard_would_take_back(world: World) -> None:
    """The twin of the guard: what may be started does not have to go the moment that it runs."""
    facts = dataclasses.replace(CUDA, accelerators=(), memory=dataclasses.replace(CUDA.memory, available=20 * GIB))
    kept = host_reserve(facts)
    scene = Scene(world, facts, GuardSettings())
    assert scene.guard.reserve == kept // 2
    assert scene.admission.free([HOST]) == 20 * GIB - kept
    assert scene.admission.facts_for("m").memory.available == 20 * GIB
    scene.guard.configure(GuardSettings(reserve_bytes=8 * GIB))
    floor = 8 * GIB + kept // 2
    assert scene.admission.free([HOST]) == 20 * GIB - floor
    assert scene.admission.facts_for("m").memory.available - kept == 20 * GIB - floor
    assert scene.guard.room_for(a_plan(total=10 * GIB))
    assert not scene.guard.room_for(a_plan(total=12 * GIB))
    scene.guard.configure(GuardSettings(enabled=False, reserve_bytes=8 * GIB))
    assert scene.admission.free([HOST]) == 20 * GIB - kept


async def test_one_that_does_not_go_takes_nobody_elses_turn_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process hangs in the kernel: killing it again frees nothing, and costs the time in which a host freezes."""
    world.timing = dataclasses.replace(world.timing, guard_kill=0.05)
    scene = await serving(world, ON_APU, APU)
    stuck = world.d.serving_engine
    assert stuck is not None
    assert stuck.watch is not None
    others = Actor(Deployment(an_entry(name="others"), "h"), world.context)
    for number in (1, 2):
        child = subprocess.Popen(["sleep", "600"])
        world.runner.children.append(child)
        engine = Engine(f"e{number}", "others", number, ON_APU, "k", None, None, float(number), State.READY)
        engine.follow(child.pid)
        others.deployment.engines.append(engine)
    oldest, older = others.deployment.engines
    kill, watch = type(stuck.watch).kill, stuck.watch
    monkeypatch.setattr(type(watch), "kill", lambda self: True if self is watch else kill(self))
    scene.reading = MemoryPressure(7 * GIB, 0.0, 0)

    async def gone() -> bool:
        await scene.guard.look([world.actor, others])
        return oldest.exited.is_set()

    await until(gone, LIMIT, "all that can go")
    assert older.exited.is_set()
    told = [e.evidence["engine"] for e in world.journal._recent if e.code == "engine_stopped"]
    assert told == [stuck.name, older.name, oldest.name]
