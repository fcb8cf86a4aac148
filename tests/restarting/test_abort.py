"""DFlash under rising load brings the embedded engine down for real; the ladder is climbed, and `why` names it.

llama.cpp's server aborts with DFlash from 3 slots on when load rises (`get_sub_batch: failed to add token`; measured
with xllamacpp b11549 on two CPU cores, 6 of 6 runs at 4 slots). The shipped catalogue therefore allows 2 slots; here an
owner has dropped that restriction.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.models import generate as g
from tests.stack.stack import Stack
from tests.stack_fixture import MakeStack
from tests.waiting import until_sync

SLOTS = 8
"""Half of them, which is what the next rung has, are still more than the build bears."""
STAGES = (1, 2, 4, 8, 16)
"""Clients at once: rising, for a single burst does not do it."""
STAGE_S = 1.5
PATIENCE = 300.0
FREE = """
[[restriction]]
id = "xllamacpp-dflash-slots"
disabled = true

[[restriction]]
id = "llama-cpp-dflash-slots"
disabled = true

[[combination]]
id = "owners-dflash"
model = "m"
image = "embedded-cpu"
runtime = "llama.cpp"
method = "dflash"
evidence = "proven"
gain = 3.0
crossover = 64
date = 2026-11-30
source = "the owner's own bench, with one request"
"""
"""An owner who knows better."""


class Load:
    """Clients that come in rising numbers, again and again, until told to end."""

    def __init__(self, stack: Stack, model: str) -> None:
        self._stack, self._model = stack, model
        self._end = threading.Event()
        self._wanted = 1
        self._threads = [threading.Thread(target=self._client, args=(n,), daemon=True) for n in range(max(STAGES))]
        self.answered = self.refused = 0
        self._lock = threading.Lock()

    def _client(self, number: int) -> None:
        with httpx.Client(timeout=60) as client:
            while not self._end.is_set():
                if number >= self._wanted:
                    self._end.wait(0.05)
                    continue
                body: dict[str, Any] = {
                    "model": self._model,
                    "messages": [{"role": "user", "content": f"client {number}"}],
                    "max_tokens": 48 + 8 * (number % 5),
                    "temperature": 0,
                }
                try:
                    good = client.post(f"{self._stack.base_url}/chat/completions", json=body).status_code == 200
                except httpx.HTTPError:
                    good = False
                with self._lock:
                    self.answered += good
                    self.refused += not good
                if not good:
                    self._end.wait(0.1)

    @contextmanager
    def rising(self) -> Iterator[Callable[[], None]]:
        """Start; the value goes on to the next stage."""
        for thread in self._threads:
            thread.start()
        stage = 0

        def further() -> None:
            nonlocal stage
            stage = (stage + 1) % len(STAGES)
            self._wanted = STAGES[stage]

        try:
            yield further
        finally:
            self._end.set()
            for thread in self._threads:
                thread.join(70)


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_three_aborts_lead_to_fewer_slots_and_three_more_to_a_simpler_method(
    make_stack: MakeStack, heavy_models: Path, test_models: Path
) -> None:
    stack = make_stack(scale=0.2)
    stack.paths.catalog_d.mkdir(parents=True, exist_ok=True)
    (stack.paths.catalog_d / "free.toml").write_text(FREE)
    stack.define("m", heavy_models / g.TARGET_HEAVY, drafter=test_models / g.DFLASH, parallel=SLOTS)
    with stack:
        first = stack.start("m")[0]["engine"]
        assert (first["method"], first["parallel"]) == ("dflash", SLOTS)
        load = Load(stack, "m")
        with load.rising() as further:

            def moved(change: str) -> Any:
                """The deployment once it stands there; load goes on rising meanwhile."""

                def there() -> Any:
                    view = stack.deployment("m")
                    rung = view["rung"]
                    settled = rung is not None and rung["change"] == change and view["state"] == "ready"
                    if not settled:
                        further()
                        threading.Event().wait(STAGE_S)  # a stage of the load, not a wait for something
                    return view if settled else None

                return until_sync(there, PATIENCE, f"the rung {change}")

            fewer = moved("fewer_slots")
            assert (fewer["engine"]["method"], fewer["engine"]["parallel"]) == ("dflash", SLOTS // 2)
            plain = moved("plan")
            assert plain["engine"]["method"] != "dflash"
            until_sync(lambda: stack.chat("m", 20).status_code == 200, 60, "it serves")
        failures = [e["evidence"] for e in stack.events("m") if e["code"] == "failed"]
        print([(f["code"], f["rung"], f["failures"], f["action"], f["exit_code"]) for f in failures])
        print(f"answered {load.answered}, refused {load.refused}")
        assert {f["code"] for f in failures} == {"drafter_overrun"}
        assert [f["action"] for f in failures] == ["retry_same", "retry_same", "next_rung"] * 2
        assert [left["code"] for left in plain["rung"]["left"]] == ["drafter_overrun"] * 2
        why = subprocess.run(
            [sys.executable, "-m", "api.cli", "--state-dir", str(stack.folder), "why", "m"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        print(why)
        assert "get_sub_batch: failed to add token" in why
        assert f"{SLOTS // 2} slots instead of {SLOTS}" in why
