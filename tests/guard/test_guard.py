"""A hog takes the host's memory: engines go, the right one first, before the host freezes.

The hog is real and lives in a cgroup with a limit; the engines are real. What the daemon reads as the
host's memory is computed from the two of them, so that nobody else on this machine is in the sum.
`test_with_the_machines_own_numbers` reads /proc itself.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from orchestrator.timing import Timing
from tests.guard.conftest import GIB, FakeHost
from tests.guard.hog import MIB, Hog, Meter, resident
from tests.guard.test_crash import issues, marks, outrider
from tests.models import generate as g
from tests.stack.stack import Stack
from tests.stack.test_survival import Stream
from tests.stack_fixture import MakeStack
from tests.waiting import until_sync

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]
RESERVE = 2 * GIB
BAR = Timing().guard_kill


@pytest.fixture
def meter(host: FakeHost) -> Iterator[Meter]:
    made = Meter(lambda size: host.memory(available=size), base=6 * GIB, reserve=RESERVE)
    made.start()
    yield made
    made.close()


@pytest.fixture
def hog(meter: Meter) -> Iterator[Hog]:
    with Hog(limit=600 * MIB) as made:
        meter.hog = made
        yield made
        meter.hog = None


def guard_settings(*, enabled: bool = True, reserve: int = RESERVE) -> str:
    return f"[guard]\nenabled = {str(enabled).lower()}\nreserve_bytes = {reserve}\n"


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False


def gone(pid: int) -> float:
    """Wait for the process to end; when it did (monotonic)."""
    until_sync(lambda: not alive(pid), 10, f"process {pid} is gone")
    return time.monotonic()


def told(stack: Stack, code: str, kind: str = "guard") -> list[Any]:
    return [e for e in stack.events() if (e["kind"], e["code"]) == (kind, code)]


def overlooked(stack: Stack, looks: int = 2) -> None:
    """Wait until the guard has looked some times more."""
    seen, last = 0, float("inf")
    end = time.monotonic() + 20

    def looked() -> bool:
        nonlocal seen, last
        age: float = stack.get("/api/v1/health")["loops"]["guard"]
        seen, last = seen + (age < last), age
        return seen > looks

    until_sync(looked, end - time.monotonic(), "looks")


def loading(stack: Stack, name: str) -> Any:
    """Start a model, and stop its process while it loads; its engine."""
    assert stack.want(name, "running").status_code < 300

    def engine() -> Any:
        found = stack.deployment(name)["engine"]
        return found if found and found["pid"] and found["state"] == "loading" else None

    found = until_sync(engine, 30, f"{name} loads")
    os.kill(found["pid"], signal.SIGSTOP)
    return found


@pytest.mark.slow
def test_the_preemptible_goes_first_then_the_newest_and_one_stays(
    make_stack: MakeStack, heavy_models: Any, host: FakeHost, meter: Meter, hog: Hog
) -> None:
    """At the full time scale, for the bar is in seconds."""
    stack = make_stack(environ=host.environ, scale=1.0, settings=guard_settings())
    for name in ("spare", "first", "second"):
        stack.define(name, heavy_models / g.TARGET_HEAVY, method="none", context=4096, preemptible=name == "spare")
    with stack:
        pids = {name: stack.start(name)[0]["engine"]["pid"] for name in ("spare", "first", "second")}
        meter.pids = tuple(pids.values())
        stream = Stream(stack, "spare", 1500)
        stream.start()
        until_sync(lambda: len(stream.text) > 5, 30, "a stream runs")

        meter.leave(100 * MIB)
        overlooked(stack)
        assert told(stack, "engine_stopped") == []
        hog.take(150 * MIB)
        ended = gone(pids["spare"])
        assert meter.crossed_at is not None
        took = [ended - meter.crossed_at]
        stopped = until_sync(lambda: told(stack, "engine_stopped"), 5, "told")[0]
        assert (stopped["deployment"], stopped["evidence"]["chosen"]) == ("spare", "preemptible")
        assert stopped["evidence"]["available_bytes"] < stopped["evidence"]["reserve_bytes"] == RESERVE
        assert sorted(stopped["evidence"]["others"]) == ["first-1", "second-1"]
        assert "spare-1 is stopped" in stopped["text"]
        until_sync(lambda: told(stack, "engine_gone"), 5, "gone, and told")
        stream.join(30)
        assert stream.error, "what was in flight ends with an error event"
        assert not stream.done
        assert issues(stack, "memory_pressure")
        until_sync(lambda: stack.deployment("spare")["reason"], 5, "a reason")
        view = stack.deployment("spare")
        assert (view["desired"], view["reason"]["code"]) == ("running", "memory_guard")
        assert "must be" in outrider(stack, "ps").stdout
        overlooked(stack)
        assert [alive(pids[n]) for n in ("first", "second")] == [True, True], "one was enough"

        hog.take(meter.available() - RESERVE + 50 * MIB)
        ended = gone(pids["second"])
        took.append(ended - meter.crossed_at)
        until_sync(lambda: len(told(stack, "engine_gone")) == 2, 5, "gone, and told")
        overlooked(stack)
        assert alive(pids["first"])
        assert [e["evidence"]["chosen"] for e in told(stack, "engine_stopped")] == ["preemptible", "newest"]
        assert stack.text("first", 20)
        print(f"\nfrom the shortage to the process's end: {', '.join(f'{t:.2f} s' for t in took)} (bar {BAR} s)")
        assert max(took) < BAR
        lines = outrider(stack, "events").stdout.splitlines()
        story = [line for line in lines if "engine_stopped" in line or "engine_gone" in line or "memory_p" in line]
        print("\n".join(story))
        assert len(story) >= 5


@pytest.mark.slow
def test_what_loads_goes_and_comes_back_when_there_is_memory_again(
    make_stack: MakeStack, heavy_models: Any, host: FakeHost, meter: Meter, hog: Hog
) -> None:
    stack = make_stack(environ=host.environ, settings=guard_settings(enabled=False), gateway=False)
    for name in ("old", "new"):
        stack.define(name, heavy_models / g.TARGET_HEAVY, method="none")
    with stack:
        old = stack.start("old")[0]["engine"]["pid"]
        engine = loading(stack, "new")
        meter.pids = (old, engine["pid"])
        assert resident(engine["pid"]) > 10 * MIB
        meter.leave(4 * MIB)
        hog.take(10 * MIB)
        overlooked(stack)
        assert [alive(old), alive(engine["pid"])] == [True, True], "switched off, it does nothing"
        assert issues(stack, "memory_pressure") == {}

        stack.write_settings(guard_settings())
        assert outrider(stack, "reload").returncode == 0
        gone(engine["pid"])
        stopped = until_sync(lambda: told(stack, "engine_stopped"), 5, "told")[0]
        assert (stopped["deployment"], stopped["evidence"]["state"]) == ("new", "loading")
        until_sync(lambda: stack.deployment("new")["reason"], 5, "a reason")
        assert alive(old)
        until_sync(lambda: marks(stack) == [], 5, "its mark is gone: this was no crash of the host")
        overlooked(stack)
        view = stack.deployment("new")
        assert (view["state"], view["reason"]["code"]) == ("failed", "memory_guard")
        assert view["next_attempt_s"] is not None
        stack.want("new", "running")
        until_sync(lambda: stack.deployment("new")["reason"], 5, "the reason stands when a person tries")
        assert stack.deployment("new")["reason"]["code"] == "memory_guard"

        hog.release()
        meter.base += 4 * GIB
        stack.wait_state("new", "ready", may_fail=True)
        assert issues(stack, "memory_pressure") == {}
        assert told(stack, "memory_pressure_over", "issue")


@pytest.mark.slow
def test_pressure_that_is_over_and_a_full_page_cache_cost_nobody_an_engine(
    make_stack: MakeStack, test_models: Any, host: FakeHost
) -> None:
    """The twin. (A dip between two looks: `tests/daemon/test_guard.py`, where the looks are counted.)"""
    stack = make_stack(environ=host.environ, settings=guard_settings(), gateway=False)
    stack.define("m", test_models / g.TARGET, method="none", preemptible=True)
    with stack:
        pid = stack.start("m")[0]["engine"]["pid"]
        # nearly nothing is free, and the cache could be given up at once
        host.memory(available=RESERVE + MIB, free=20 * MIB)
        overlooked(stack, 4)
        # the average is still high, and nothing has waited since: the pressure is over
        host.pressure(45.0)
        overlooked(stack, 4)
        # a kernel that says nothing of pressure
        (host.folder / "proc/pressure/memory").unlink()
        overlooked(stack, 4)
        assert alive(pid)
        assert told(stack, "engine_stopped") == []
        assert issues(stack, "memory_pressure") == {}


@pytest.mark.slow
@pytest.mark.slow
def test_pressure_alone_stops_an_engine(make_stack: MakeStack, test_models: Any, host: FakeHost) -> None:
    """Memory is available by the numbers, and all tasks wait for it all the same: mapped weights are read again
    and again."""
    stack = make_stack(environ=host.environ, settings=guard_settings(), gateway=False)
    stack.define("m", test_models / g.TARGET, method="none")
    with stack:
        pid = stack.start("m")[0]["engine"]["pid"]
        begun = time.monotonic()

        def stalling() -> bool:
            host.pressure(35.0, stalled_us=int((time.monotonic() - begun) * 1e6))
            return not alive(pid)

        until_sync(stalling, BAR, "the engine is gone")
        stopped = until_sync(lambda: told(stack, "engine_stopped"), 5, "told")[0]
        assert (stopped["evidence"]["reason"], stopped["evidence"]["full_avg10"]) == ("memory_pressure", 35.0)
        host.pressure(1.0)
        stack.wait_state("m", "ready", may_fail=True)


@pytest.mark.slow
def test_with_the_machines_own_numbers(make_stack: MakeStack, heavy_models: Any) -> None:
    """A margin of two and a half GiB, and a hog that takes it: others on this machine may come and go."""
    reserve = _available() - int(2.5 * GIB)
    stack = make_stack(scale=1.0, settings=guard_settings(reserve=reserve), gateway=False)
    stack.define("spare", heavy_models / g.TARGET_HEAVY, method="none", preemptible=True)
    with stack, Hog(limit=6 * GIB) as hog:
        pid = stack.start("spare")[0]["engine"]["pid"]
        hog.take(min(6 * GIB, _available() - reserve + GIB // 2))
        begun = time.monotonic()
        assert gone(pid) - begun < BAR
        assert told(stack, "engine_stopped")


def _available() -> int:
    with open("/proc/meminfo") as meminfo:
        return next(int(line.split()[1]) * 1024 for line in meminfo if line.startswith("MemAvailable:"))
