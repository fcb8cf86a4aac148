"""A daemon that does not run for a while, a host that sleeps, a clock that is set, and a second daemon: nothing of
what runs is touched. Fault rows 10, 11 and 21; real engines, real signals, times at a twentieth.

systemd's part is played by a socket that listens where `NOTIFY_SOCKET` says: a watchdog that goes hungry is what
makes systemd kill.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.endurance.clocks import Clocks
from tests.install.manager import Listener
from tests.models import generate as g
from tests.models.tokenizer import recital
from tests.stack.stack import Stack
from tests.telling.golden import quiet, told
from tests.waiting import until_sync

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]
slow = pytest.mark.slow
SCALE = 0.05
WATCHDOG = 30 * SCALE
"""Seconds after which systemd would kill."""
HOUR = 3600.0


@pytest.fixture(scope="module")
def clocks(tmp_path_factory: pytest.TempPathFactory) -> Clocks:
    return Clocks(tmp_path_factory.mktemp("clocks"))


@pytest.fixture(scope="module")
def listener(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listener]:
    with Listener(str(tmp_path_factory.mktemp("notify") / "s")) as made:
        yield made


@pytest.fixture(scope="module")
def stack(
    podman_socket: str, embedded_image: str, test_models: Path, clocks: Clocks, listener: Listener
) -> Iterator[Stack]:
    """`m` is ready; the daemon has a watchdog, and clocks that can be set."""
    watched = {"NOTIFY_SOCKET": listener.address, "WATCHDOG_USEC": str(int(WATCHDOG * 1e6))}
    made = Stack(podman_socket, scale=SCALE, environ={**clocks.environ, **watched}, gateway=False)
    made.define("m", test_models / g.TARGET, method="none")
    with made:
        for_the_daemon, made.environ = made.environ, {}
        made.start_gateway()  # it would feed the same watchdog
        made.environ = for_the_daemon
        made.start("m")
        yield made


def untouched(stack: Stack, before: Any) -> None:
    """The same engine serves, and nobody counted a failure."""
    view = stack.wait_state("m", "ready")
    engine = view["engine"]
    assert (engine["container_id"], engine["pid"]) == (before["engine"]["container_id"], before["engine"]["pid"])
    assert (view["restarts"], view["reason"]) == (before["restarts"], before["reason"])
    assert stack.text("m", 20) == recital(20)
    assert stack.get("/api/v1/issues") == []


def since(stack: Stack, sequence: int) -> list[str]:
    return [e["code"] for e in stack.get(f"/api/v1/events?since={sequence}&limit=1000")]


def newest(stack: Stack) -> int:
    return int(stack.events()[-1]["sequence"])


@pytest.mark.parametrize(
    "seconds", [pytest.param(10 * SCALE, marks=slow), 40 * SCALE, pytest.param(120 * SCALE, marks=slow)]
)
def test_a_daemon_that_is_stopped_for_a_while_touches_nothing_when_it_goes_on(
    stack: Stack, listener: Listener, seconds: float
) -> None:
    before, last = stack.deployment("m"), newest(stack)
    daemon = stack.daemon
    assert daemon is not None
    listener.drain()
    begun = time.monotonic()
    daemon.send_signal(signal.SIGSTOP)
    try:
        hungry = listener.is_silent("WATCHDOG=1", seconds)
        assert stack.text("m", 40) == recital(40), "traffic does not need the daemon"
        assert httpx.get(f"http://127.0.0.1:{stack.ops_port}/ready/m", timeout=5).status_code == 200
    finally:
        daemon.send_signal(signal.SIGCONT)
    listener.wait("WATCHDOG=1", 10)
    assert hungry, "a daemon that does not run does not feed its watchdog"
    untouched(stack, before)
    said = since(stack, last)
    if seconds > 1.5:  # below that it is a busy machine
        until_sync(lambda: "daemon_stopped" in since(stack, last), 10, "it says that it did not run")
        told(stack, "m", "10-daemon-stopped-for-a-while", since_s=time.monotonic() - begun)
    assert not {"engine_ended", "failed", "starting", "stopped", "podman_unreachable"} & set(said), said
    assert '"loops_stuck"' not in stack.log("daemon")


@slow
def test_a_watchdog_that_kills_a_stopped_daemon_costs_nothing(stack: Stack, listener: Listener) -> None:
    """What systemd does at its limit: SIGABRT, and a new daemon, while streams run."""
    before, daemon = stack.deployment("m"), stack.daemon
    assert daemon is not None
    daemon.send_signal(signal.SIGSTOP)
    listener.drain()
    hungry = listener.is_silent("WATCHDOG=1", WATCHDOG)
    daemon.send_signal(signal.SIGABRT)
    daemon.send_signal(signal.SIGCONT)
    assert hungry
    # faulthandler, which writes where each thread was, can itself fall over a thread that is in the middle of a call
    assert daemon.wait(20) in (-signal.SIGABRT, -signal.SIGSEGV)
    assert "Fatal Python error: Aborted" in stack.log("daemon")
    assert stack.text("m", 20) == recital(20)
    stack.start_daemon()
    listener.wait("READY=1")
    untouched(stack, {**before, "restarts": 0})


@pytest.mark.parametrize("step", [pytest.param(HOUR, marks=slow), -HOUR])
def test_a_clock_that_is_set_stops_nothing_and_starts_nothing(stack: Stack, clocks: Clocks, step: float) -> None:
    since_s = quiet(stack, "m")
    before, last = stack.deployment("m"), newest(stack)
    with contextlib.ExitStack() as after:
        after.callback(clocks.set)
        clocks.set(wall=step)
        until_sync(lambda: "clock_set" in since(stack, last), 20, "the step was seen")
        rounds = stack.get("/api/v1/health")["loops"]
        assert max(age for name, age in rounds.items() if name in ("reconcile", "guard", "telemetry")) < 5
        until_sync(lambda: stack.get("/api/v1/health")["loops"]["reconcile"] < 1, 20, "the loops go on")
        untouched(stack, before)
        told(stack, "m", "21-clock-set", since_s=since_s(), words={r"set by -?\S+ s": "set by SECONDS"})
        stack.send("POST", "/api/v1/deployments/m/restart")  # and what is asked for is done, back-off and all
        stack.wait_state("m", "ready")
        until_sync(lambda: stack.deployment("m")["engine"]["generation"] > before["engine"]["generation"], 20)
        assert "failed" not in since(stack, last)
    stack.wait_state("m", "ready")


def test_a_host_that_slept_finds_everything_as_it_was(stack: Stack, clocks: Clocks) -> None:
    """A suspended process cannot be had here: the clocks say what they say after eight hours of sleep."""
    since_s = quiet(stack, "m")
    before, last = stack.deployment("m"), newest(stack)
    try:
        clocks.sleep(8 * HOUR)
        until_sync(lambda: "host_slept" in since(stack, last), 20, "the sleep was seen")
        untouched(stack, before)
        told(stack, "m", "21-host-slept", since_s=since_s())
    finally:
        clocks.set()


@pytest.mark.slow
def test_a_second_daemon_is_refused_and_the_first_goes_on(stack: Stack) -> None:
    since_s = quiet(stack, "m")
    before, first = stack.deployment("m"), stack.daemon
    assert first is not None
    seconds = [
        subprocess.Popen(
            [sys.executable, "-m", "api.cli", "--state-dir", str(stack.folder), "daemon"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for second in seconds:
        said = second.communicate(timeout=60)[1]
        assert second.returncode == 4
        assert f"is held by process {first.pid}" in said
        assert "hint:" in said
    assert int((stack.paths.run_dir / "daemon.pid").read_text()) == first.pid
    untouched(stack, before)
    told(stack, "m", "11-a-second-daemon", since_s=since_s())


@slow
def test_of_daemons_that_begin_at_once_one_serves(stack: Stack) -> None:
    """After a crash that several supervisors answer: one has the folder, the others are refused, one engine serves."""
    before = stack.deployment("m")
    stack.kill_daemon()
    started = []
    for _ in range(3):
        stack.start_daemon(wait=False)
        started.append(stack.daemon)
    until_sync(lambda: sum(d is not None and d.poll() is not None for d in started) == 2, 60, "two were refused")
    assert sorted(d.poll() or 0 for d in started if d is not None) == [0, 4, 4]
    stack.daemon = next(d for d in started if d is not None and d.poll() is None)
    stack.wait_api()
    untouched(stack, {**before, "restarts": 0})
    assert len(stack.containers()) == 1
