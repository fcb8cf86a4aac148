"""A thousand starts and stops leave nothing behind: real engines in real Podman, several at once.

`OUTRIDER_CYCLES` is how many (1000). What was there before and after is printed, and written to
`.cache/endurance/cycles.json`.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from tests.endurance.census import Census, at_rest, rss, told
from tests.endurance.life import Hand, hand
from tests.models import generate as g
from tests.models.tokenizer import recital
from tests.podman_fixture import run_apart
from tests.stack_fixture import MakeStack

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(3600)]
AT_ONCE = 4
CYCLES = int(os.environ.get("OUTRIDER_CYCLES", "1000")) // AT_ONCE * AT_ONCE
WARM = 3
"""Cycles of each model before the first count: pools of threads are full then, and caches are warm."""
ASKED = 10
"""One cycle of so many has a request answered before its stop."""
ROOM = {
    "daemon_rss": 40 << 20,  # the journal's last 2,000 entries, 720 readings, pages of SQLite, arenas of threads
    "gateway_rss": 8 << 20,
    "daemon_threads": 4,  # of pools that have a limit, and had not all been needed at once
    "daemon_fds": 4,  # connections kept for reuse
    "gateway_threads": 4,  # of the one pool that writes its table: a write as another ends takes one more, up to six
    "gateway_fds": 4,
    "daemon_tasks": 1,  # the request that asks
    "history": 1 << 30,
}
PARTS = 20
"""How often the daemon is weighed on the way."""
LATE = 8 << 20
"""Bytes that the daemon may grow by in the second half: what is kept up to a number is full by then."""
FULL = 600
"""Cycles after which it is."""
NAMES = tuple(f"m{n}" for n in range(AT_ONCE))


async def _cycles(one: Hand, name: str, count: int, memory: list[int]) -> None:
    assert one.stack.daemon is not None
    for number in range(count):
        if name == NAMES[0] and number % (count // PARTS or 1) == 0:
            memory.append(rss(one.stack.daemon.pid))
        await one.want(name, "running")
        await one.until(name, "ready")
        if number % ASKED == 0:
            assert await one.ask(name) == recital(8)
        await one.want(name, "stopped")
        await one.until(name, "stopped")


def test_a_thousand_starts_and_stops_leave_nothing_behind(
    make_stack: MakeStack, test_models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stack = make_stack()
    for name in NAMES:
        stack.define(name, test_models / g.TARGET, method="none")

    memory: list[int] = []

    async def run(count: int) -> dict[str, int]:
        memory.clear()
        async with hand(stack) as one:
            await asyncio.gather(*(_cycles(one, name, count, memory) for name in NAMES))
            return dict(one.codes)

    with stack:
        run_apart(run(WARM))
        before = Census.of(stack)
        began = time.monotonic()
        codes = run_apart(run(CYCLES // AT_ONCE))
        took = time.monotonic() - began
        after = at_rest(stack, before, ROOM)
        seen = {"cycles": CYCLES, "seconds": round(took, 1), "at_once": AT_ONCE, "journal": codes}
        with capsys.disabled():
            print()
            print(told("cycles", before, after, **seen, memory=dict(enumerate(memory))))
            print("  daemon's MB on the way: " + " ".join(f"{size / 1e6:.0f}" for size in memory))
        assert after.beyond(before, ROOM) == {}
        if CYCLES >= FULL:
            assert memory[-1] - memory[len(memory) // 2] < LATE, "the daemon's memory comes to rest"
        # a hand that is quick stops what is ready before the journal says so; then the start counts as called off
        assert codes.get("ready", 0) + codes.get("start_aborted", 0) >= CYCLES, "each start came to its end"
        assert not {"failed", "engine_ended", "not_removed", "drain_cut_short"} & set(codes)
        assert stack.get("/api/v1/issues") == []
        assert (after.containers, after.processes, after.files) == (0, before.processes, 0)
        assert "Traceback" not in stack.log("daemon")
