"""A daemon that has used up its file descriptors, one whose Podman hangs while many ask, and one whose loop is stuck:
loops stay live, it answers, its threads are bounded, its watchdog is not fed by a loop that is stuck, and all is as
before when the limit is lifted. Fault row 23; real engines, real Podman, a socket in systemd's place.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from containers import service, trial
from containers.podman import THREADS
from tests.endurance.stuck import VARIABLE
from tests.install.manager import Listener
from tests.models import generate as g
from tests.models.tokenizer import recital
from tests.podman_fixture import run_apart
from tests.stack.stack import Stack
from tests.telling.golden import quiet, told
from tests.waiting import until_sync

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]
SCALE = 0.05
WATCHDOG = 30 * SCALE
ASKERS = 60
OTHERS = min(32, (os.cpu_count() or 1) + 4)
"""Threads that asyncio's own pool may have."""
LIMIT = 20.0
CALL = {
    r"\([^()]*(too many open files)\)": r"(CALL: \1)",
    r"\([^()]*(?:not done within|no answer from)[^()]*\)": "(CALL: no answer)",
}
"""Which of its calls finds out first is chance."""
NEW = 5.0
"""Seconds in which a new client hears something."""
ROUNDS = 30
MEASURED = 2.0
"""Seconds for which the CPU is watched."""


@pytest.fixture(scope="module")
def podman(podman_run_dir: Path, embedded_image: str) -> Iterator[service.Service]:
    """A Podman service that nobody else uses."""
    with tempfile.TemporaryDirectory(prefix="or-ex-") as folder:
        shutil.copy(podman_run_dir / trial.CACHE_FILE, folder)
        yield run_apart(service.own(Path(folder), limit=30))
        run_apart(run_apart(service.own(Path(folder), limit=30)).stop())


PASSING = {"podman_away", "loop_stuck", "gateway_away", "journal_unwritten"}
"""Issues that go with their cause."""


@pytest.fixture(scope="module")
def listener(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listener]:
    with Listener(str(tmp_path_factory.mktemp("notify") / "s")) as made:
        yield made


@pytest.fixture(scope="module")
def stuck(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """While this file is there the reconcile loop hangs."""
    return tmp_path_factory.mktemp("stuck") / "now"


@pytest.fixture(scope="module")
def stack(podman: service.Service, test_models: Path, listener: Listener, stuck: Path) -> Iterator[Stack]:
    """`m` is ready."""
    watched = {"NOTIFY_SOCKET": listener.address, "WATCHDOG_USEC": str(int(WATCHDOG * 1e6))}
    made = Stack(podman.socket, scale=SCALE, environ={**watched, VARIABLE: str(stuck)}, gateway=False)
    made.module = "tests.endurance.stuck"
    made.define("m", test_models / g.TARGET, method="none")
    with made:
        made.environ, made.module = {}, "api.cli"  # a gateway would feed the same watchdog
        made.start_gateway()
        made.start("m")
        yield made


@contextlib.contextmanager
def nothing_lost(stack: Stack) -> Iterator[int]:
    """Whatever is done to the daemon (its pid), afterwards the same engine serves and nobody counted a failure."""
    before = stack.deployment("m")
    daemon = stack.daemon
    assert daemon is not None
    yield daemon.pid
    until_sync(lambda: stack.get("/api/v1/health")["podman"] is True, LIMIT, "Podman answers")
    until_sync(lambda: stack.get("/api/v1/health")["loops"]["reconcile"] < 1, LIMIT, "the loops go round")
    until_sync(lambda: not issues(stack) & PASSING, LIMIT, "what was found of it is withdrawn")
    after = stack.wait_state("m", "ready")
    assert daemon.poll() is None
    assert after["engine"]["container_id"] == before["engine"]["container_id"]
    assert (after["restarts"], after["reason"]) == (before["restarts"], before["reason"])
    assert stack.text("m", 20) == recital(20)


def issues(stack: Stack) -> set[str]:
    """The codes of those that are open."""
    return {issue["code"] for issue in stack.get("/api/v1/issues")}


def cpu_s(pid: int) -> float:
    """Seconds of CPU so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def new_clients(stack: Stack) -> Counter[str]:
    """What clients hear that connect now, all at once, and stay."""
    heard: Counter[str] = Counter()
    with contextlib.ExitStack() as open_:
        clients = [open_.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(ASKERS)]
        for client in clients:
            client.settimeout(NEW)
            with contextlib.suppress(OSError):
                client.connect(str(stack.paths.control_socket))
                client.sendall(b"GET /api/v1/health HTTP/1.1\r\nHost: outrider\r\n\r\n")
        for client in clients:
            try:
                said = client.recv(4096)
                heard["answered" if said.startswith(b"HTTP/1.1 200") else "hung up"] += 1
            except TimeoutError:
                heard["nothing"] += 1
            except OSError:
                heard["hung up"] += 1
    return heard


def threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


@pytest.mark.slow
def test_a_daemon_without_file_descriptors_lives_on_and_works_again_when_it_has_some(
    stack: Stack, listener: Listener
) -> None:
    since_s = quiet(stack, "m")
    with nothing_lost(stack) as pid, stack.api() as caller:
        assert caller.get("/api/v1/health").status_code == 200
        taken = sorted(int(x) for x in os.listdir(f"/proc/{pid}/fd"))
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        last = listener_last(stack)
        # descriptors are given by number, the lowest first: at this one there is not a single one to be had
        gap = next(n for n in range(len(taken) + 1) if n not in taken)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (gap, limits[1]))
        try:
            until_sync(lambda: listener_last(stack, caller) > last, LIMIT, "it is noticed")
            listener.drain()
            listener.wait("WATCHDOG=1", WATCHDOG * 4)
            loops = caller.get("/api/v1/health").json()["loops"]
            assert max(loops[name] for name in ("reconcile", "guard", "telemetry")) < WATCHDOG * 2
            assert stack.text("m", 20) == recital(20), "traffic does not need the daemon"
            used, since = cpu_s(pid), time.monotonic()
            heard = sum((new_clients(stack) for _ in range(ROUNDS)), Counter[str]())
            print(f"new clients without descriptors: {heard}")
            assert heard["nothing"] == 0, "each is answered, or hung up on at once"
            assert heard["hung up"] > 0
            until_sync(lambda: time.monotonic() - since >= MEASURED, LIMIT, "it is watched for a while")
            share = (cpu_s(pid) - used) / (time.monotonic() - since)
            print(f"without descriptors it uses {share:.0%} of a core")
            assert share < 0.5, "no loop that spins"
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        with stack.api() as new:
            assert new.get("/api/v1/health", timeout=NEW).status_code == 200, "who comes after is answered"
    told(stack, "m", "23-no-file-descriptors", since_s=since_s(), words=CALL)


def listener_last(stack: Stack, caller: httpx.Client | None = None) -> int:
    if caller is None:
        return int(stack.events()[-1]["sequence"])
    return int(caller.get("/api/v1/events").json()[-1]["sequence"])


@pytest.mark.slow  # a call of Podman's may take 30 s
def test_many_calls_of_a_podman_that_hangs_take_no_more_threads_than_there_are_for_them(
    stack: Stack, listener: Listener, podman: service.Service
) -> None:
    def ask(_: int) -> int:
        with stack.api() as api:
            return api.get("/api/v1/images", timeout=60).status_code

    since_s = quiet(stack, "m")
    with nothing_lost(stack) as pid:
        before = threads(pid)
        hung = service.running(podman.run_dir)
        assert hung is not None
        os.kill(hung, signal.SIGSTOP)
        try:
            with ThreadPoolExecutor(ASKERS) as askers:
                answers = [askers.submit(ask, n) for n in range(ASKERS)]
                listener.drain()
                most = 0
                while not all(a.done() for a in answers):
                    assert stack.get("/api/v1/health")["loops"]["guard"] < WATCHDOG * 2
                    most = max(most, threads(pid))
            listener.wait("WATCHDOG=1", WATCHDOG)
            assert stack.text("m", 20) == recital(20)
        finally:
            os.kill(hung, signal.SIGCONT)
        assert {a.result() for a in answers} == {503}, "each is told that Podman does not answer"
        assert most <= before + THREADS + OTHERS < before + ASKERS, (before, most)
    told(stack, "m", "23-podman-hangs-while-many-ask", since_s=since_s(), words=CALL)


def test_a_watchdog_is_not_fed_while_the_reconcile_loop_is_stuck(stack: Stack, listener: Listener, stuck: Path) -> None:
    with nothing_lost(stack):
        stuck.touch()
        try:
            until_sync(lambda: stack.get("/api/v1/health")["loops"]["reconcile"] > 1, LIMIT, "it is stuck")
            listener.drain()
            assert listener.is_silent("WATCHDOG=1", WATCHDOG), "what makes systemd end it"
            assert stack.get("/api/v1/health")["loops"]["guard"] < WATCHDOG, "the others go on, and are no excuse"
        finally:
            stuck.unlink()
        listener.wait("WATCHDOG=1", LIMIT)
