"""A model that is asked for is called once, however often the gateway says that a request waits for it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from unittest.mock import Mock

from orchestrator.automation import Automation
from orchestrator.config import DemandSettings
from orchestrator.demand.desk import Desk
from orchestrator.views import Desired
from tests.daemon.world import LIMIT, World
from tests.waiting import until


def report(waiting: int) -> dict[str, Any]:
    return {"gateway_id": "g", "uptime_s": 1.0, "models": {"m": {"arrivals": waiting, "waiting": waiting}}}


async def test_a_call_is_told_once(tmp_path: Path) -> None:
    world = await World.open(tmp_path)
    desk = Desk(
        DemandSettings(),
        (),
        admission=Mock(),
        gateway=world.gateway,
        journal=world.journal,
        automation=Automation(),
        clock=world.clock,
        timing=world.timing,
    )
    desk.actors = lambda: (world.actor,)
    try:
        world.run()
        await asyncio.sleep(0)  # from here on the actor has a mailbox
        await world.actor.set_desired(Desired.ON_DEMAND, "t")
        for waiting in (1, 2, 3):  # no round of the actor is between them
            world.gateway.report(report(waiting))
            desk.heard()
        await until(lambda: world.d.serving_engine is not None, LIMIT, "an engine serves")
        assert world.journal_codes().count("called") == 1
    finally:
        await world.close()
