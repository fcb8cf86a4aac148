"""What nothing can end keeps its memory: the next plan of its model is made for what is left beside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from orchestrator.admission import Admission
from orchestrator.errors import EngineFailed
from orchestrator.profiles import load
from orchestrator.views import State
from tests.daemon.world import LIMIT, World, a_plan
from tests.waiting import until

GIB = 1 << 30


def test_no_plan_counts_on_the_memory_of_what_stays() -> None:
    known = load("dankclaw")
    facts = replace(known, memory=replace(known.memory, available=20 * GIB))
    for limit in (None, 10 * GIB):
        admission = Admission(lambda: facts, limit)
        for engine in ("stays", "serves"):
            admission.adopt(engine, a_plan(2 * GIB))
        before = admission.facts_for("m").memory.available
        admission.stays("stays")
        assert before - admission.facts_for("m").memory.available == 2 * GIB
        admission.forget("stays")
        admission.adopt("stays", a_plan(2 * GIB))
        assert admission.facts_for("m").memory.available == before


async def test_a_wedged_engine_stays(tmp_path: Path) -> None:
    world = await World.open(tmp_path)
    engine = await world.started()
    world.runner.fail_down = EngineFailed("wedged", "nothing ends it")
    await world.actor.restart()
    await until(lambda: engine.state is State.WEDGED, LIMIT, "wedged")
    assert world.memory.staying == {engine.id}
    await world.close()
