"""Bounds of detection at the full time scale, against real engines: for `make test-all`."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import httpx
import pytest

from tests.models import generate as g
from tests.models.tokenizer import recital
from tests.stack_fixture import MakeStack
from tests.waiting import until_sync

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(180)]
CRASH_BOUND = 0.3
"""Seconds from an engine's death to the gateway's knowing of it."""
ROUNDS = 5


def test_a_crash_is_seen_and_routed_around(make_stack: MakeStack, test_models: Path) -> None:
    stack = make_stack(scale=1.0)
    stack.define("m", test_models / g.TARGET, method="none")
    took = []
    with stack, httpx.Client(base_url=f"http://127.0.0.1:{stack.ops_port}", timeout=5) as ops:
        stack.start("m")
        for _ in range(ROUNDS):
            pid = stack.wait_state("m", "ready", may_fail=True)["engine"]["pid"]
            until_sync(lambda: ops.get("/ready/m").status_code == 200, 20, "the gateway routes to it")
            begun = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            until_sync(lambda: ops.get("/ready/m").status_code == 503, 20, "the gateway knows")
            took.append(time.monotonic() - begun)
            stack.want("m", "running")  # a person's "try again now": the pauses between tries are not the point
            assert stack.text("m", 10) == recital(10), "a request in the gap is held and then answered"
    assert sorted(took)[len(took) // 2] < CRASH_BOUND, took
