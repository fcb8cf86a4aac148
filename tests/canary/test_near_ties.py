"""A model of which every second-best token is as good as the best: no alarm, however it is started.

Which of the two wins depends on the order in which a kernel adds up: with a cache or without, alone or in a batch,
drafted or not, it says something else from the first tokens on. A canary that compared texts would cry at each start.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.plan import Method
from tests.canary.asked import Desk, a_plan
from tests.canary.conftest import Start
from tests.models import generate as g

pytestmark = [pytest.mark.real]
STARTS = 50


def _ways(models: Path) -> list[tuple[Method, tuple[str | Path, ...], int]]:
    """Ways to start it: method, words, slots."""
    return [
        (Method.NONE, (), 2),
        (Method.DRAFT, ("--spec-type", "draft-simple", "-md", models / g.RANDOM_2, "--spec-draft-n-max", "5"), 2),
        (Method.DFLASH, ("--spec-type", "draft-dflash", "-md", models / g.DFLASH_WRONG, "--spec-draft-n-max", "7"), 1),
        (Method.DRAFT, ("--spec-type", "draft-simple", "-md", models / g.TIES, "--spec-draft-n-max", "5"), 4),
        (Method.NONE, ("-ub", "64", "-fa", "off"), 3),
    ]


async def _starts(desk: Desk, start: Start, models: Path, count: int) -> int:
    """So many starts, each with a canary; in how many of them an answer parted from the known text."""
    ways, parted = _ways(models), 0
    for number in range(count):
        method, words, slots = ways[number % len(ways)]
        engine = start("-m", models / g.TIES, *words, slots=slots)
        # every plan is another one, so that each is asked wholly
        plan = a_plan(models / g.TIES, f"-t={number}", *map(str, words), method=method, parallel=slots)
        await desk.look(plan, engine.socket)
        engine.stop()
        seen = desk.last().evidence
        parted += "below_likeliest" in seen
        below = seen.get("below_likeliest", 0.0)
        assert isinstance(below, float)
        assert below <= 0.5
    assert [e.code for e in desk.events()] == ["canary_passed"] * count, "and nothing is said of a failure"
    return parted


@pytest.mark.timeout(60)
async def test_a_few_starts(desk: Desk, start: Start, test_models: Path) -> None:
    parted = await _starts(desk, start, test_models, 5)
    assert parted >= 3, "or this test could not fail"
    print(f"5 starts, 0 alarms; in {parted} of them what it said parted from what is known")


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_fifty_starts(desk: Desk, start: Start, test_models: Path) -> None:
    parted = await _starts(desk, start, test_models, STARTS)
    assert parted >= STARTS // 2
    print(f"{STARTS} starts, 0 alarms; in {parted} of them what it said parted from what is known")
