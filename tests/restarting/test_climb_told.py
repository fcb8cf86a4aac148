"""What a person reads of a climb: three aborts of a drafting engine, fewer slots, three more, no drafts.

The engines are `sleep` processes that are really killed; what they say last is what llama.cpp says
(`test_abort` has it from the real one).
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from orchestrator.engine import Engine
from orchestrator.errors import EngineFailed
from orchestrator.faults import Ended, judge
from orchestrator.models import Runtime
from orchestrator.runtimes import ADAPTERS
from tests.restarting.test_climber import PLAIN, a_world, killed, serving
from tests.telling.golden import told

LOG = ("common_speculative_state_dflash: drafting", "get_sub_batch: failed to add token (error -2)")


async def test_three_aborts_and_three_more_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = await a_world(tmp_path)

    async def aborted(engine: Engine) -> EngineFailed:
        ended = Ended(engine.name, engine.deployment, 128 + signal.SIGABRT, LOG)
        return judge(ended, ADAPTERS[Runtime.LLAMA_CPP].failures)

    monkeypatch.setattr(world.runner, "why_it_ended", aborted)
    try:
        await world.started()
        await killed(world, 6)
        assert (await serving(world)).plan.digest == PLAIN.digest
        print(told(world, "m", "climb-down"))
    finally:
        await world.close()
