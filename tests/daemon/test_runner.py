"""Steps of the runner that only a call at the wrong moment shows."""

from __future__ import annotations

import asyncio

from orchestrator.engine import Engine
from orchestrator.runner import Runner
from tests.daemon.world import a_plan


async def test_a_start_that_is_called_off_ends_whenever_that_is() -> None:
    """In the turn in which one of its parts was done, the call was taken for the end of the other's watch."""
    runner = object.__new__(Runner)

    async def part() -> None: ...

    async def step() -> None:
        engine = Engine("e", "m", 1, a_plan(), "k", None, None, 1.0)
        await runner._unless_it_exits(engine, part())
        await asyncio.Event().wait()

    for turns in range(12):
        task = asyncio.create_task(step())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=1)
        assert task.cancelled(), f"called off after {turns} turns of the loop"
