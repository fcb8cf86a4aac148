"""Emptying an engine that is to be unloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.demand.unloading import Leaving, emptied
from orchestrator.gateway_link import Drained
from orchestrator.views import State
from tests.daemon.world import World

IDLE = Leaving("idle_unload", "nobody used it", 1.0)


@pytest.mark.parametrize(
    ("ends", "state", "admits"), [(False, State.READY, True), (True, State.FAILED, False)], ids=["stays", "ended"]
)
async def test_one_that_does_not_become_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool, state: State, admits: bool
) -> None:
    """It serves on; unless it ended while it was waited for, which no drain brings back (found by a history)."""
    world = await World.open(tmp_path)
    try:
        engine = await world.started()

        async def drain(*_: Any) -> Drained:
            if ends:
                engine.move(State.FAILED)
            return Drained(False, 1, "it still answers")

        monkeypatch.setattr(world.context.gateway, "drain", drain)
        assert not await emptied(world.d, engine, IDLE, world.context, lambda: None)
        assert (engine.state, engine.admit) == (state, admits)
        codes = [e.code async for e in world.journal.follow()]
        assert ("unload_called_off" in codes) is not ends
    finally:
        await world.close()
