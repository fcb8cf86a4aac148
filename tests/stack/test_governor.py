"""Speculation follows load: dropped when the request rate rises, back when it falls, and no request lost."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.models import generate as g
from tests.models.tokenizer import recital
from tests.stack.stack import Stack
from tests.stack_fixture import MakeStack
from tests.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]
TOKENS = 48
QPS: dict[str, Any] = {"policy": "qps", "drop_above": 12.0, "resume_below": 4.0, "dwell_s": 10.0}
"""At the stack's scale of 0.05 the dwell time is 0.5 s and a rate's window as long."""


@dataclass
class Load:
    """Requests at a steady pace, each compared with the known text."""

    stack: Stack
    pace: float
    wrong: list[str] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    methods: set[str] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self, http: httpx.AsyncClient, until_: asyncio.Event) -> None:
        while not until_.is_set():
            task = asyncio.create_task(self.one(http))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
            try:
                await asyncio.wait_for(until_.wait(), 1 / self.pace)
            except TimeoutError:
                continue
        if self.tasks:
            await asyncio.wait(set(self.tasks))

    def served_by(self, method: str) -> bool:
        return method in self.methods

    async def one(self, http: httpx.AsyncClient) -> None:
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": TOKENS, "temperature": 0}
        try:
            answer = await http.post(f"{self.stack.base_url}/chat/completions", json=body, timeout=30)
            data: Any = answer.json()
            text = data["choices"][0]["message"]["content"]
        except (httpx.HTTPError, KeyError, ValueError) as error:
            self.wrong.append(repr(error))
            return
        if text != recital(TOKENS):
            self.wrong.append(text)
        self.drafted.append(data["timings"].get("draft_n", 0))
        self.methods.add(answer.headers["x-outrider-method"])


def leave_room_for_one(stack: Stack) -> None:
    """Start the daemon again with memory for one engine of `m` and no second."""
    planned = stack.send("POST", "/api/v1/plans", {"model": "m"}).json()
    total = planned["plan"]["expected_memory"]["total"]
    stack.write_settings(f"[host]\nengine_memory = {total * 3 // 2}\n")
    stack.kill_daemon()
    stack.start_daemon()


async def test_speculation_is_dropped_under_load_and_comes_back(make_stack: MakeStack, test_models: Path) -> None:
    stack = make_stack()
    stack.define(
        "m", test_models / g.TARGET, drafter=test_models / g.DFLASH, method="dflash", parallel=2, speculation=QPS
    )
    with stack:
        await asyncio.to_thread(stack.start, "m")
        async with httpx.AsyncClient() as http:
            assert stack.chat("m", TOKENS).json()["timings"]["draft_n"] > 0
            busy, calm = Load(stack, pace=24.0), Load(stack, pace=1.5)
            for load, wanted in ((busy, "none"), (calm, "dflash")):
                enough = asyncio.Event()
                running = asyncio.create_task(load.run(http, enough))

                await until(partial(load.served_by, wanted), 60, f"a request served with {wanted}")
                enough.set()
                await running
            # the last requests of each phase, straight from the engines' own timings
            assert stack.chat("m", TOKENS).json()["timings"]["draft_n"] > 0
        events = stack.events("m")
    assert busy.wrong == []
    assert calm.wrong == []
    assert busy.drafted[0] > 0
    assert 0 in busy.drafted
    assert calm.methods == {"none", "dflash"}
    by_code = {e["code"]: e for e in events}
    dropped, resumed = by_code["speculation_dropped"], by_code["speculation_resumed"]
    assert dropped["evidence"]["rate"] > QPS["drop_above"]
    assert dropped["evidence"]["threshold"] == QPS["drop_above"]
    assert resumed["evidence"]["rate"] < QPS["resume_below"]
    switches = [e["evidence"] for e in events if e["code"] == "switch_started"]
    assert [s["how"] for s in switches] == ["make_before_break"] * 2
    assert all(s["needed_bytes"] < s["free_bytes"] for s in switches)
    assert [e["code"] for e in events].count("failed") == 0


@pytest.mark.slow
async def test_a_switch_that_would_cost_too_much_is_refused(make_stack: MakeStack, test_models: Path) -> None:
    """No room for two engines and no patience for a gap: it stays as it is, and says why with the numbers."""
    stack = make_stack()
    impatient = {**QPS, "max_switch_s": 0.0}
    stack.define("m", test_models / g.TARGET, drafter=test_models / g.DFLASH, method="dflash", speculation=impatient)

    async def refused() -> bool:  # asked beside the loop, which has to keep the pace of the load
        return "switch_too_costly" in await asyncio.to_thread(stack.codes, "m")

    with stack:
        leave_room_for_one(stack)
        before = (await asyncio.to_thread(stack.start, "m"))[0]["engine"]
        async with httpx.AsyncClient() as http:
            load, enough = Load(stack, pace=24.0), asyncio.Event()
            running = asyncio.create_task(load.run(http, enough))
            await until(refused, 40, "the refusal")
            enough.set()
            await running
        refusal = next(e["evidence"] for e in stack.events("m") if e["code"] == "switch_too_costly")
        after = stack.deployment("m")["engine"]
    assert load.wrong == []
    assert (after["container_id"], after["method"]) == (before["container_id"], "dflash")
    assert refusal["needed_bytes"] > refusal["free_bytes"]
    assert refusal["max_switch_s"] == 0.0
    assert refusal["rate"] > QPS["drop_above"]


@pytest.mark.slow
async def test_without_room_for_two_arrivals_are_held_while_it_swaps(make_stack: MakeStack, test_models: Path) -> None:
    stack = make_stack()
    stack.define("m", test_models / g.TARGET, drafter=test_models / g.DFLASH, method="dflash", speculation=QPS)
    with stack:
        leave_room_for_one(stack)
        await asyncio.to_thread(stack.start, "m")
        async with httpx.AsyncClient() as http:
            load, enough = Load(stack, pace=24.0), asyncio.Event()
            running = asyncio.create_task(load.run(http, enough))
            await until(lambda: "none" in load.methods, 60, "a request served without speculation")
            enough.set()
            await running
        how = [e["evidence"]["how"] for e in stack.events("m") if e["code"] == "switch_started"]
    assert load.wrong == []
    assert how[0] == "break_before_make"
