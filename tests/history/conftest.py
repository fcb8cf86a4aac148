"""An actor without Podman for each test, and ways to hold it up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.engine import Engine
from orchestrator.proof import Proof
from tests.daemon.world import World


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = await World.open(tmp_path)
    yield world
    await world.close()


@dataclass
class Held:
    """Whether what was held up was called off."""

    cancelled: bool = False


def hold_up(world: World) -> Held:
    """Let no engine become ready: its load goes on until it is called off."""
    held, bring_up = Held(), world.runner.bring_up

    async def for_ever(engine: Engine, *, limit: float, seen: Any) -> Proof:
        world.runner.ups += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            held.cancelled = True
            raise
        return await bring_up(engine, limit=limit, seen=seen)

    world.runner.bring_up = for_ever  # type: ignore[method-assign]
    return held
