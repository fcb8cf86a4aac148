"""What `outrider why` tells of a model that is there on demand: why it came, and why it went."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.demand.three import EACH
from tests.models import generate as g
from tests.stack_fixture import MakeStack
from tests.telling.golden import told

pytestmark = pytest.mark.real


@pytest.mark.slow
def test_the_stories_of_one_that_was_idle_and_of_one_that_made_way(
    make_stack: MakeStack, fake_engine_image: str, test_models: Path
) -> None:
    stack = make_stack(settings=f"[host]\nengine_memory = {int(1.5 * EACH)}\n[demand]\nresidence_s = 0\n")
    stack.define_fake("brief", fake_engine_image, test_models / g.TARGET, ttl_s=20)
    for name in ("first", "second"):
        stack.define_fake(name, fake_engine_image, test_models / g.TARGET)
    with stack:
        for name in ("brief", "first", "second"):
            assert stack.want(name, "on_demand").status_code == 200
        assert stack.chat("brief", 4).status_code == 200
        stack.wait(lambda: "stopped" in stack.codes("brief"), what="it is unloaded")
        stack.wait_state("brief", "idle")
        print(told(stack, "brief", "on-demand-idle", without=("canary_*",)))

        assert stack.chat("first", 4).status_code == 200
        assert stack.chat("second", 4).status_code == 200
        stack.wait_state("first", "idle")
        print(told(stack, "first", "on-demand-evicted", without=("canary_*",)))
