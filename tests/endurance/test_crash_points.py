"""A daemon that is killed at each step of a start and of a stop: the next one adopts what runs, finishes what was
begun, and leaves nobody behind. Fault row 9; real engines, real Podman, SIGKILL.

Steps that lie between two lasting things are places in the code (`orchestrator.crash_points`); those inside a call of
Podman's are found by a door that stands between the two (`door.py`).
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from orchestrator.crash_points import VARIABLE, Place
from tests.endurance import door as d
from tests.endurance.door import Call, Door, Moment
from tests.models import generate as g
from tests.models.tokenizer import recital
from tests.stack.stack import Stack
from tests.telling.golden import told
from tests.waiting import until_sync

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]
slow = pytest.mark.slow
NAME = "m"
LIMIT = 60.0

START = tuple(Place)[: list(Place).index(Place.DRAINING)]
STOP = tuple(Place)[list(Place).index(Place.DRAINING) :]
KEPT = START[START.index(Place.STARTED) :]
"""From here on its container runs, and is to be kept."""

TOLD = {
    Place.CREATED: "before-its-container-ran",
    Place.STARTED: "while-it-loaded",
    Place.STOPPED: "in-a-stop",
}
"""Where the story is compared too."""


@pytest.fixture(scope="module")
def door(podman_socket: str) -> Iterator[Door]:
    with tempfile.TemporaryDirectory(prefix="or-door-") as folder, Door(Path(folder) / "s", podman_socket) as made:
        yield made


@pytest.fixture(scope="module")
def stack(door: Door, embedded_image: str, test_models: Path) -> Iterator[Stack]:
    made = Stack(str(door.path))
    made.define(NAME, test_models / g.TARGET, method="none")
    with made:
        yield made


def begin(stack: Stack, place: Place | None = None, *, running: bool) -> Any:
    """The deployment in the state that comes before, and a daemon that will die at `place`; its engine if it runs."""
    if stack.daemon is None or stack.daemon.poll() is not None:
        stack.start_daemon()  # a test before this one failed
    if running:
        engine = stack.start(NAME)[0]["engine"]
    else:
        stack.want(NAME, "stopped")
        engine = stack.wait_state(NAME, "stopped")["engine"]
    if place is not None:
        stack.kill_daemon()
        stack.environ = {VARIABLE: place.value}
        stack.start_daemon()
        stack.environ = {}
    return engine


def died(stack: Stack) -> None:
    assert stack.daemon is not None
    assert stack.daemon.wait(LIMIT) == -9, "the daemon died where it was to die"


def ask(stack: Stack, state: str) -> None:
    """Ask for a state; the daemon may die over the answer."""
    with contextlib.suppress(httpx.RemoteProtocolError, httpx.ReadError):
        stack.want(NAME, state)


def runs_alone(stack: Stack) -> Any:
    """It is ready, answers, and nothing else of it is there; its engine."""
    ready = stack.wait_state(NAME, "ready")["engine"]
    until_sync(lambda: stack.containers() == [ready["container_id"]], LIMIT, "one container")
    assert stack.text(NAME, 20) == recital(20)
    its_own = {ready["id"], f"{ready['id']}.key"}
    until_sync(lambda: {p.name for p in stack.paths.engines.iterdir()} == its_own, LIMIT, "nobody else's files")
    view = stack.deployment(NAME)
    assert (view["desired"], len(view["engines"])) == ("running", 1)
    return ready


def is_gone(stack: Stack) -> None:
    """Nothing of it is left, and it stays so."""
    stack.wait_state(NAME, "stopped")
    until_sync(lambda: stack.containers() == [], LIMIT, "no container")
    until_sync(lambda: list(stack.paths.engines.iterdir()) == [], LIMIT, "its files are gone")
    assert stack.deployment(NAME)["desired"] == "stopped"
    assert list(stack.paths.loading.glob("*.json")) == [], "no mark of a load that is none"


@pytest.mark.parametrize("place", [p if p is Place.CREATED else pytest.param(p, marks=slow) for p in START])
def test_a_daemon_that_dies_in_a_start_is_followed_by_one_that_finishes_it(stack: Stack, place: Place) -> None:
    begin(stack, place, running=False)
    ask(stack, "running")
    died(stack)
    there = stack.containers()
    assert len(there) == (place in KEPT or place is Place.CREATED), f"what was there at {place}"
    stack.start_daemon()
    ready = runs_alone(stack)
    assert [ready["container_id"]] == there if place in KEPT else ready["container_id"] not in there
    assert "desired_running" not in stack.codes(NAME)[-3:], "nobody had to ask again"
    if place in TOLD:
        told(stack, NAME, f"09-daemon-killed-{TOLD[place]}")


@pytest.mark.parametrize("place", [p if p is Place.STOPPED else pytest.param(p, marks=slow) for p in STOP])
def test_a_daemon_that_dies_in_a_stop_is_followed_by_one_that_finishes_it(stack: Stack, place: Place) -> None:
    begin(stack, place, running=True)
    ask(stack, "stopped")
    died(stack)
    stack.start_daemon()
    is_gone(stack)
    if place in TOLD:
        told(stack, NAME, f"09-daemon-killed-{TOLD[place]}")


@pytest.mark.parametrize("place", [pytest.param(p, marks=slow) for p in STOP])
def test_a_daemon_that_dies_in_a_restart_is_followed_by_one_that_serves_one_engine(stack: Stack, place: Place) -> None:
    """The stop of a restart: whatever was left, one engine serves, and it has a generation of its own."""
    before = begin(stack, place, running=True)
    stack.send("POST", f"/api/v1/deployments/{NAME}/restart")
    died(stack)
    stack.start_daemon()
    after = runs_alone(stack)
    assert after["generation"] >= before["generation"]
    if place not in (Place.DRAINING, Place.DRAINED):
        assert after["container_id"] != before["container_id"], "what had ended is not taken for what runs"


@pytest.mark.parametrize("moment", Moment)
@pytest.mark.parametrize("call", [pytest.param(d.CREATE, id="create"), pytest.param(d.START, id="start")])
@slow
def test_a_daemon_that_dies_inside_podmans_call_of_a_start(
    stack: Stack, door: Door, call: Call, moment: Moment
) -> None:
    begin(stack, running=False)
    assert stack.daemon is not None
    door.at(call, moment, stack.daemon.kill)
    ask(stack, "running")
    assert door.sprung(LIMIT)
    died(stack)
    stack.start_daemon()
    runs_alone(stack)


@pytest.mark.parametrize("moment", Moment)
@pytest.mark.parametrize("call", [pytest.param(d.STOP, id="stop"), pytest.param(d.REMOVE, id="remove")])
@slow
def test_a_daemon_that_dies_inside_podmans_call_of_a_stop(stack: Stack, door: Door, call: Call, moment: Moment) -> None:
    begin(stack, running=True)
    assert stack.daemon is not None
    door.at(call, moment, stack.daemon.kill)
    ask(stack, "stopped")
    assert door.sprung(LIMIT)
    died(stack)
    stack.start_daemon()
    is_gone(stack)


@slow
def test_daemons_that_die_at_every_step_in_turn_lose_nothing(stack: Stack) -> None:
    """Not one death but a row of them: each daemon dies a step later in the start that the first one began."""
    begin(stack, START[0], running=False)
    ask(stack, "running")
    died(stack)
    for place in START[1 : START.index(Place.SERVING)]:  # the last of them leaves a proven engine, which serves at once
        stack.environ = {VARIABLE: place.value}
        stack.start_daemon(wait=False)
        stack.environ = {}
        died(stack)
        assert len(stack.containers()) <= 2
    (there,) = stack.containers()
    stack.start_daemon()
    assert runs_alone(stack)["container_id"] == there


@slow
def test_nobody_dies_where_nobody_was_told_to(stack: Stack) -> None:
    """The variable is what kills, and a place that is not on the way kills nobody."""
    begin(stack, Place.DRAINED, running=False)
    stack.start(NAME)
    assert stack.daemon is not None
    assert stack.daemon.poll() is None
