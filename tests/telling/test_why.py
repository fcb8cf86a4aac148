"""`outrider why`: the story of a deployment, made of the journal."""

from __future__ import annotations

from pathlib import Path

import pytest

from containers.errors import PodmanFailed
from orchestrator.errors import EngineFailed
from orchestrator.timing import Timing
from orchestrator.views import Desired
from tests.daemon.world import LIMIT, World
from tests.telling.golden import told
from tests.waiting import until


@pytest.fixture
def quick() -> Timing:
    return Timing().scaled(0.05)


async def test_a_killed_engine(tmp_path: Path, quick: Timing) -> None:
    world = await World.open(tmp_path, quick)
    try:
        first = await world.started()
        world.runner.kill()
        await until(lambda: world.d.serving not in (None, first.generation), LIMIT, "another engine serves")
        read = told(world, "m", "world-killed")
        assert "m serves." in read
        assert "The last trouble was" in read
    finally:
        await world.close()


async def test_what_repeats_is_told_once(tmp_path: Path, quick: Timing) -> None:
    """The planner's error here is made by hand: a Podman that fails again and again at one step."""
    world = await World.open(tmp_path, quick)
    try:
        world.runner.fail_up = PodmanFailed("the disk of containers is full", hint="`podman system df` shows it")
        world.run()
        await world.actor.set_desired(Desired.RUNNING, "t")
        await until(lambda: world.runner.ups >= 3 and world.d.failures.count >= 3, LIMIT, "three failures")
        await until(lambda: not world.d.live(), LIMIT, "cleaned up")
        read = told(world, "m", "world-fails-at-start")
        assert " times, last " in read
        assert "`podman system df` shows it" in read
    finally:
        await world.close()


async def test_what_waits_for_a_person_says_so(tmp_path: Path, quick: Timing) -> None:
    world = await World.open(tmp_path, quick)
    try:
        world.runner.fail_up = EngineFailed("bad_flag", "it knows no option --nonsense", retryable=False)
        world.run()
        await world.actor.set_desired(Desired.RUNNING, "t")
        await until(lambda: world.d.failures.parked and not world.d.live(), LIMIT, "parked")
        told(world, "m", "world-parked")
    finally:
        await world.close()
