"""What is left of a model and does not go counts as what it is: no room that its eviction would give, and none that its
next start has already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator.admission import HOST, Admission
from orchestrator.config import DemandSettings
from orchestrator.demand.desk import Desk
from orchestrator.deployment import Deployment
from orchestrator.engine import Engine
from orchestrator.profiles import load
from orchestrator.views import Desired, State
from tests.daemon.world import World, a_plan, an_entry


def engine(name: str, generation: int, state: State) -> Engine:
    return Engine(name, "m", generation, a_plan(), "k", None, None, 1.0, state=state, container_id=f"c{generation}")


async def test_only_what_goes_with_it_is_room(tmp_path: Path) -> None:
    world = await World.open(tmp_path)
    admission = Admission(lambda: load("dankclaw"))
    parts: Any = {
        "admission": admission,
        "gateway": world.gateway,
        "journal": world.journal,
        "automation": world.context.automation,
        "clock": world.clock,
        "timing": world.timing,
    }
    desk = Desk(DemandSettings(), (), **parts)
    d = world.d
    d.desired = Desired.ON_DEMAND
    d.engines += [engine("wedged", 1, State.WEDGED), engine("serves", 2, State.READY)]
    d.serving = 2
    admission.adopt("wedged", a_plan(30))
    admission.adopt("serves", a_plan(5))
    found = desk.resident(d)
    assert found is not None
    assert found.sizes == {HOST: 5}
    d.engines.pop()
    admission.forget("serves")
    found = desk.resident(d)
    assert found is not None
    assert (found.sizes, found.wedged) == ({HOST: 30}, True), "it is in the way"

    other = Deployment(an_entry(), "h")
    other.entry = other.entry.model_copy(update={"name": "other"})
    with desk.kept_for(d, a_plan(7)):
        assert desk.kept(other, [HOST]) == 7, "what is wedged is not what it was kept for"
        admission.adopt("next", a_plan(7), loading=True)
        assert desk.kept(other, [HOST]) == 0
    await world.close()
