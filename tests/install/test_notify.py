"""What daemon and gateway tell the service manager, and when the watchdog goes hungry."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from api.notify import Manager
from containers.service import usual_socket
from orchestrator.clock import SystemClock
from orchestrator.supervise import Loops
from orchestrator.timing import Timing
from tests.install.manager import Listener, Podman, abstract
from tests.stack.stack import Stack
from tests.waiting import until

WATCHDOG = 1.5
"""Seconds; the daemon's reconcile loop goes round five times in it at the tests' scale."""


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    with Listener(str(tmp_path / "notify")) as made:
        yield made


# the messages


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_messages_reach_the_socket(tmp_path: Path, kind: str) -> None:
    with Listener(str(tmp_path / "notify") if kind == "path" else abstract()) as listener:
        environ = {"NOTIFY_SOCKET": listener.address, "WATCHDOG_USEC": "60000000", "HOME": "/"}
        manager = Manager.from_environment(environ)
        assert environ == {"HOME": "/"}, "children inherit none of it"
        assert (manager.there, manager.watchdog) == (True, 60.0)
        manager.ready("two lines\nREADY=0")
        manager.status("two lines READY=0")
        manager.alive()
        manager.reloading()
        manager.stopping("bye")
        said = [listener.message(1) for _ in range(4)]
        assert said[0] == "READY=1\nSTATUS=two lines READY=0", "a status cannot smuggle a line in"
        assert said[1] == "WATCHDOG=1", "the same status again is not news"
        first, second = str(said[2]).splitlines()
        assert first == "RELOADING=1"
        assert second.startswith("MONOTONIC_USEC=")
        assert said[3] == "STOPPING=1\nSTATUS=bye"
        manager.close()
        assert not manager.ready()


@pytest.mark.parametrize(
    ("usec", "pid", "seconds"),
    [
        ("30000000", None, 30.0),
        ("30000000", "77", 30.0),
        ("30000000", "78", None),
        ("0", None, None),
        ("x", None, None),
    ],
)
def test_the_watchdog_is_for_the_process_that_is_named(usec: str, pid: str | None, seconds: float | None) -> None:
    environ = {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": usec, **({} if pid is None else {"WATCHDOG_PID": pid})}
    assert Manager.from_environment(environ, pid=77).watchdog == seconds


def test_without_a_manager_nothing_happens(tmp_path: Path) -> None:
    nobody = Manager.from_environment({})
    assert not any((nobody.there, nobody.ready(), nobody.alive(), nobody.stopping()))
    gone = Manager(str(tmp_path / "gone"), 1.0)
    assert not gone.ready(), "a manager that is gone costs no error"
    gone.close()


async def test_a_loop_that_hangs_stops_the_pulse_of_the_one_that_does_not() -> None:
    loops, beats, hang = Loops(SystemClock()), [0], asyncio.Event()

    async def work() -> None: ...

    async def stuck() -> None:
        await hang.wait()

    def count() -> None:
        beats[0] += 1

    loops.every("reconcile", 0.01, work)
    loops.pulse("reconcile", count, allowance=0.2)
    loops.every("other", 0.01, stuck)
    loops.forever("journal", stuck)
    try:
        await until(lambda: beats[0] > 3, 5)
        await until(lambda: loops.stuck(0.2) == ["other"], 5, "the stuck loop, and not the one that never ends")
        seen = beats[0]
        rounds = loops.ages()["reconcile"]
        await until(lambda: loops.ages()["reconcile"] < rounds or loops.took, 5)
        assert beats[0] == seen, "no pulse while another loop is stuck"
        hang.set()
        await until(lambda: beats[0] > seen + 3, 5)
    finally:
        await loops.close()


def test_podmans_deadline_fits_into_the_watchdogs_time() -> None:
    """A round waits for at most one call of Podman's between two signs of life."""
    unit = Path(__file__).parents[2] / "deploy" / "systemd" / "outrider.service"
    if not unit.exists():
        return
    seconds = next(int(x.partition("=")[2]) for x in unit.read_text().splitlines() if x.startswith("WatchdogSec="))
    timing = Timing()
    assert timing.podman_call + timing.reconcile_period < seconds


# the daemon


@pytest.mark.real
@pytest.mark.timeout(120)
@pytest.mark.slow
def test_a_daemons_life_as_its_manager_sees_it(
    podman_socket: str, short: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = Podman(short / "podman.sock", podman_socket)
    door.serve()
    monkeypatch.setenv("NOTIFY_SOCKET", listener.address)
    monkeypatch.setenv("WATCHDOG_USEC", str(int(WATCHDOG * 1e6)))
    stack = Stack(str(door.path), gateway=False)
    try:
        stack.start_daemon(wait=False)
        assert stack.daemon is not None
        listener.wait("READY=1")
        assert stack.get("/api/v1/health")["podman"] is True, "ready means that the API answers, after adoption"
        assert listener.longest_silence(5) < WATCHDOG

        stack.daemon.send_signal(signal.SIGHUP)
        reload = listener.wait("RELOADING=1")[-1]
        assert "MONOTONIC_USEC=" in reload
        listener.wait("READY=1")

        with door.hanging():  # the reconcile loop waits for an answer that does not come
            listener.drain()
            until_hungry(listener)
            assert stack.get("/api/v1/health")["loops"]["reconcile"] > WATCHDOG, "the process itself is well"
        listener.wait("WATCHDOG=1")

        door.close()  # an outage is no reason to be restarted
        listener.wait("STATUS=Podman does not answer")
        assert listener.longest_silence(8) < WATCHDOG
        door.serve()
        listener.wait("STATUS=0 of 0 models ready")

        stack.daemon.send_signal(signal.SIGTERM)
        listener.wait("STOPPING=1")
        assert stack.daemon.wait(30) == 0
    finally:
        stack._podman_socket = podman_socket
        stack.close()
        door.close()


def until_hungry(listener: Listener) -> None:
    """Pass once the watchdog was not fed for its whole time."""
    for _ in range(20):
        if listener.is_silent("WATCHDOG=1", WATCHDOG):
            return
    raise AssertionError("the watchdog is fed although the reconcile loop hangs")


@pytest.mark.real
def test_a_daemon_without_podman_is_ready_and_starts_none_of_its_own(
    short: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", listener.address)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short))
    where = usual_socket()
    if where is not None and Path(where).exists():
        where = str(short / "none")  # this machine has one: name one that is not there
    stack = Stack(where if where is not None and where.startswith(str(short)) else None, gateway=False)
    try:
        stack.start_daemon(wait=False)
        said = listener.wait("READY=1")
        assert "Podman does not answer" in said[-1]
        assert not stack.paths.podman_socket.exists(), "Podman is the manager's to start"
    finally:
        stack.close()


# the gateway


@pytest.mark.slow
def test_a_gateways_life_as_its_manager_sees_it(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", listener.address)
    monkeypatch.setenv("WATCHDOG_USEC", str(int(WATCHDOG * 1e6)))
    stack = Stack("/nowhere", gateway=False)
    try:
        stack.start_gateway()
        assert stack.gateway is not None
        ready = listener.wait("READY=1")[-1]
        assert f"127.0.0.1:{stack.gateway_port}" in ready
        assert httpx.get(f"http://127.0.0.1:{stack.ops_port}/healthz", timeout=5).status_code == 200
        assert listener.longest_silence(3) < WATCHDOG
        os.kill(stack.gateway.pid, signal.SIGSTOP)
        listener.drain()
        until_hungry(listener)
        os.kill(stack.gateway.pid, signal.SIGCONT)
        listener.wait("WATCHDOG=1")
        stack.gateway.send_signal(signal.SIGTERM)
        listener.wait("STOPPING=1")
        assert stack.gateway.wait(30) == 0
    finally:
        stack.close()
