"""The first request for a model that is there on demand: nothing between it and the start waits for a period."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.clock import SystemClock
from tests.models import generate as g
from tests.stack_fixture import MakeStack

pytestmark = pytest.mark.real
SCALE = 10.0
"""Periods are ten times as long as in service: reports 5 s, looks at demand 10 s, reconciling 50 s."""


@pytest.mark.slow
def test_the_first_request_and_nothing_else_begins_the_start(
    make_stack: MakeStack, fake_engine_image: str, test_models: Path
) -> None:
    stack = make_stack(scale=SCALE)
    stack.define_fake("m", fake_engine_image, test_models / g.TARGET)
    with stack:
        assert stack.want("m", "on_demand").status_code == 200
        stack.wait(lambda: stack.deployment("m")["state"] == "idle", what="it is idle")
        sent = SystemClock().wall()
        assert stack.chat("m", 4).status_code == 200
        seen = [e for e in stack.events("m") if e["code"] in {"called", "planned", "starting", "ready"}]
        assert [e["code"] for e in seen] == ["called", "planned", "starting", "ready"]
        assert seen[0]["evidence"]["waiting"] == 1
        delays = {e["code"]: e["at"] - sent for e in seen}
        print("\nseconds from the request to", {code: round(delay, 3) for code, delay in delays.items()})
        assert delays["called"] < 5 * SCALE, "before the next look"
