"""Whether time went by without the daemon: the judgement, and who hears of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.clock import SystemClock
from orchestrator.events import Journal
from orchestrator.pause_watch import PauseWatch
from orchestrator.pauses import STEP, Instant, Pause, judge
from orchestrator.store import Store
from orchestrator.supervise import Loops
from orchestrator.timing import PAUSE_MIN, Timing
from tests.waiting import until

HOUR = 3600.0
TIMING = Timing()


def judged(ran: float, *, slept: float = 0.0, wall: float = 0.0) -> Pause:
    """The judgement on a look that comes after `ran` s on the monotonic clock, a sleep, and a step of the wall's."""
    before = Instant(1000.0, 5000.0, 1.8e9)
    now = Instant(1000.0 + ran, 5000.0 + ran + slept, 1.8e9 + ran + slept + wall)
    return judge(before, now, usual=TIMING.pause_look, limit=TIMING.pause).action


@pytest.mark.parametrize(
    ("ran", "slept", "wall", "verdict"),
    [
        (1.0, 0.0, 0.0, Pause.NONE),
        (5.9, 0.0, 0.0, Pause.NONE),  # a busy machine
        (10.0, 0.0, 0.0, Pause.STOPPED),
        (40.0, 0.0, 0.0, Pause.STOPPED),
        (120.0, 0.0, 0.0, Pause.STOPPED),
        (1.0, 8 * HOUR, 0.0, Pause.SLEPT),
        (1.0, 0.0, HOUR, Pause.CLOCK_SET),
        (1.0, 0.0, -HOUR, Pause.CLOCK_SET),
        (1.0, 0.0, 0.0005, Pause.NONE),  # NTP slews by 500 ppm
        (120.0, 0.0, -HOUR, Pause.STOPPED),  # both: what matters is that nobody looked
        (1.0, 60.0, HOUR, Pause.SLEPT),
    ],
)
def test_three_clocks_tell_the_cases_apart(ran: float, slept: float, wall: float, verdict: Pause) -> None:
    assert judged(ran, slept=slept, wall=wall) is verdict


@given(st.floats(0, 5.9), st.floats(-STEP + 0.01, STEP - 0.01))
def test_a_machine_that_is_merely_busy_makes_nobody_begin_anew(ran: float, wall: float) -> None:
    assert judged(ran, wall=wall) is Pause.NONE


@given(st.floats(6.1, 10**7), st.floats(-(10**7), 10**7))
def test_a_stop_is_seen_whatever_the_walls_clock_says(ran: float, wall: float) -> None:
    assert judged(ran, wall=wall) is Pause.STOPPED


def test_at_a_small_scale_a_busy_machine_is_still_no_pause() -> None:
    assert Timing().scaled(0.05).pause == PAUSE_MIN


class Clock(SystemClock):
    """Goes on as the test says."""

    def __init__(self) -> None:
        self.t, self.boot, self.w = 100.0, 200.0, 1.8e9

    def now(self) -> float:
        return self.t

    def wall(self) -> float:
        return self.w

    def on(self, ran: float, slept: float = 0.0, wall: float = 0.0) -> None:
        self.t += ran
        self.boot += ran + slept
        self.w += ran + slept + wall


async def test_a_pause_is_told_once_and_silence_counts_from_its_end(tmp_path: Path) -> None:
    clock, heard = Clock(), list[float]()
    store = await Store.open(tmp_path / "db")
    journal = Journal(store, clock, host="h", boot_id="b", last=0)
    with structlog.testing.capture_logs():
        watch = PauseWatch(journal, clock, TIMING, boot=lambda: clock.boot)
        watch.listeners.append(lambda: heard.append(clock.now()))
        began = watch.awake_since()
        for _ in range(100):
            clock.on(1.0)
            await watch.look()
        assert (watch.awake_since(), heard) == (began, [])
        clock.on(120.0)
        assert watch.awake_since() == clock.now(), "who asks before the loop's round hears of it all the same"
        await watch.look()
        assert heard == [clock.now()]
        clock.on(1.0, slept=8 * HOUR)
        await watch.look()
        clock.on(1.0, wall=-HOUR)
        await watch.look()
        assert len(heard) == 2, "a clock that was set makes nobody begin anew"
    said = [event async for event in journal.follow()]
    await store.close()
    assert [e.code for e in said] == ["daemon_stopped", "host_slept", "clock_set"]
    assert said[0].text == "the daemon did not run for 119.0 s; what it watches is watched anew from now on"
    assert said[2].text.startswith("the host's clock was set by -3600.0 s")
    assert said[0].evidence == {"seconds": 119.0, "limit_s": 5.0}


async def test_loops_that_had_no_chance_are_not_stuck() -> None:
    clock = Clock()
    loops, hang = Loops(clock), asyncio.Event()
    rounds = 0

    async def work() -> None:
        nonlocal rounds
        rounds += 1

    async def stuck() -> None:
        await hang.wait()

    loops.every("well", 0.01, work)
    loops.every("other", 0.01, stuck)
    try:
        await until(lambda: rounds > 2, 5)
        clock.on(120.0)
        loops.refresh()
        assert loops.stuck(30.0) == [], "no loop had a chance"
        clock.on(31.0)
        await until(lambda: loops.stuck(30.0) == ["other"], 5, "the one that does not go on is found after its time")
    finally:
        await loops.close()
