"""Podman's service dies, hangs, loses its socket; a conmon dies; word of an end is lost. Engines and traffic go on, and
what is asked for meanwhile is done.

Real engines in real Podman, with a service of this file's own.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from containers import labels, proc, service, trial
from containers.podman import Podman
from orchestrator.adopting import CONMON_DEAD, Adopter
from orchestrator.engine import make_socket_folder, write_key
from orchestrator.views import Desired
from tests.containers.conftest import Specs
from tests.daemon.world import LIMIT, World, a_plan
from tests.models import generate as g
from tests.models.tokenizer import recital
from tests.podman_fixture import run_apart
from tests.stack.stack import Stack
from tests.stack_fixture import MakeStack
from tests.telling.golden import told
from tests.waiting import until, until_sync

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]
SILENCE = {r"(?m)(no answer from \S+): .*$": r"\1"}
"""A connection that was there breaks, a new one is refused."""
RARE = {"journal", "canaries", "measuring"}
"""Loops whose rounds are far apart, or that have none: their age says nothing here."""


@pytest.fixture
def own_podman(podman_run_dir: Path, embedded_image: str) -> Iterator[service.Service]:
    """A Podman service that nobody else uses. It shares the storage, so the image is there."""
    with tempfile.TemporaryDirectory(prefix="or-st-") as folder:
        shutil.copy(podman_run_dir / trial.CACHE_FILE, folder)
        yield run_apart(service.own(Path(folder), limit=30))
        run_apart(run_apart(service.own(Path(folder), limit=30)).stop())  # whichever runs there now


@pytest.fixture
def stack(own_podman: service.Service, test_models: Path) -> Iterator[Stack]:
    made = Stack(own_podman.socket)
    for name in ("bystander", "m"):
        made.define(name, test_models / g.TARGET, method="none")
    with made:
        yield made
        with contextlib.suppress(AssertionError):  # its end needs a Podman that answers
            run_apart(service.own(own_podman.run_dir, limit=30))


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def podman_is(stack: Stack, well: bool, limit: float = 40) -> None:
    until_sync(lambda: stack.get("/api/v1/health")["podman"] is well, limit, f"podman: {well}")


def ended(pid: int) -> bool:
    found = proc.process(pid)
    return found is None or not found.alive


def same(stack: Stack, before: Any) -> bool:
    """Whether the bystander's engine is the one it was, and right."""
    now = stack.deployment("bystander")
    kept = all(now["engine"][key] == before[key] for key in ("container_id", "pid", "generation"))
    return kept and now["state"] == "ready" and stack.text("bystander", 30) == recital(30)


def test_a_stop_frees_the_memory_although_podmans_service_was_killed(stack: Stack, own_podman: service.Service) -> None:
    bystander, engine = (view["engine"] for view in stack.start("bystander", "m"))
    assert own_podman.pid is not None
    os.kill(own_podman.pid, signal.SIGKILL)
    begun = time.monotonic()
    stack.want("m", "stopped")
    until_sync(lambda: ended(engine["pid"]), 15, "the engine's process has ended")
    assert time.monotonic() - begun < 10
    podman_is(stack, False)
    assert same(stack, bystander), "traffic does not need Podman"
    view = stack.deployment("m")
    assert view["state"] == "stopping", "its container is still to be removed"
    assert view["reason"]["code"] == "podman_unreachable"
    escalated = next(e for e in stack.events("m") if e["code"] == "stop_escalated")
    assert escalated["evidence"]["rung"] == "sigterm"
    run_apart(service.own(own_podman.run_dir, limit=30))
    podman_is(stack, True)
    stack.wait_state("m", "stopped")
    assert stack.containers() == [bystander["container_id"]]
    assert same(stack, bystander)
    told(stack, "m", "12-podman-killed-during-a-stop", without=("podman_unreachable",), words=SILENCE)

    # and once more with its socket gone as well; a service that lives goes on over connections that there are
    again = service.running(own_podman.run_dir)
    assert again is not None
    Path(own_podman.socket).unlink()
    os.kill(again, signal.SIGKILL)
    podman_is(stack, False)
    assert same(stack, bystander)
    run_apart(service.own(own_podman.run_dir, limit=30))
    podman_is(stack, True)
    assert same(stack, bystander)
    assert stack.start("m")[0]["restarts"] == 0
    assert stack.codes().count("podman_unreachable") == stack.codes().count("podman_back") == 2


@pytest.mark.slow
def test_a_podman_that_hangs_takes_nobody_along(stack: Stack, own_podman: service.Service) -> None:
    bystander, engine = (view["engine"] for view in stack.start("bystander", "m"))
    assert own_podman.pid is not None
    with frozen(own_podman.pid):
        begun = time.monotonic()
        stack.want("m", "stopped")
        until_sync(lambda: ended(engine["pid"]), 60, "the engine's process has ended")
        took = time.monotonic() - begun
        print(f"memory free {took:.1f} s after the stop, with a Podman that hangs")
        assert took < 35
        podman_is(stack, False, 90)
        ages = {name: age for name, age in stack.get("/api/v1/health")["loops"].items() if name not in RARE}
        assert max(ages.values()) < 40, f"every loop goes round: {ages}"
        assert same(stack, bystander)
    podman_is(stack, True, 60)
    stack.wait_state("m", "stopped", limit=90)
    until_sync(lambda: stack.containers() == [bystander["container_id"]], 20, "one container")
    assert same(stack, bystander)
    told(stack, "m", "12-podman-hangs-during-a-stop", without=("podman_timeout", "podman_back"))


def test_a_conmon_that_was_killed_hides_no_end(make_stack: MakeStack, test_models: Path) -> None:
    stack = make_stack()
    stack.define("m", test_models / g.TARGET, method="none")
    with stack:
        engine = stack.start("m")[0]["engine"]
        conmon = _conmon(stack, engine["container_id"])
        os.kill(conmon, signal.SIGKILL)
        until_sync(lambda: (CONMON_DEAD, "m") in _issues(stack), 20, "it is said")
        assert stack.deployment("m")["state"] == "ready"
        assert stack.text("m", 30) == recital(30), "the engine serves on"
        assert _says(stack, engine["container_id"]) == "running"

        os.kill(engine["pid"], signal.SIGKILL)
        begun = time.monotonic()
        until_sync(lambda: "engine_ended" in stack.codes("m"), 10, "its end is seen")
        assert time.monotonic() - begun < 2, "the bound of a crash that is to be detected"
        after = until_sync(lambda: _other(stack, engine), 60, "another engine serves")
        assert stack.text("m", 30) == recital(30)
        until_sync(lambda: stack.containers() == [after["container_id"]], 20, "nothing is left of the first")
        until_sync(lambda: (CONMON_DEAD, "m") not in _issues(stack), 20, "the issue ends by itself")
        told(stack, "m", "13-conmon-killed")

        # a stop, with the conmon dead
        os.kill(_conmon(stack, after["container_id"]), signal.SIGKILL)
        stack.want("m", "stopped")
        stack.wait_state("m", "stopped")
        assert stack.containers() == []
        assert ended(after["pid"])


def _conmon(stack: Stack, container: str) -> int:
    return int(json.loads(stack.podman("inspect", container))[0]["State"]["ConmonPid"])


def _says(stack: Stack, container: str) -> str:
    return str(json.loads(stack.podman("inspect", container))[0]["State"]["Status"])


def _issues(stack: Stack) -> list[tuple[str, str]]:
    return [(i["code"], i["subject"]) for i in stack.get("/api/v1/issues")]


def _other(stack: Stack, before: Any) -> Any:
    view = stack.deployment("m")
    return view["engine"] if view["state"] == "ready" and view["engine"]["id"] != before["id"] else None


# word of an end is lost


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = await World.open(tmp_path)
    yield made
    await made.close()


async def test_an_end_that_nobody_told_of_is_found_by_listing(
    world: World, podman: Podman, started: Callable[..., Any], specs: Specs
) -> None:
    """The kernel's word is taken away: `containers.exit_watch` loses nothing by itself."""
    plan, engine_id = a_plan(), "a" * 16
    marks = labels.write(
        labels.Labels(
            deployment="m",
            generation=1,
            plan=plan.digest,
            host="h",
            owner=world.paths.owner,
            plan_json=json.dumps(plan.to_dict()),
            engine=engine_id,
        )
    )
    container = await started("quiet", labels={**marks, **dict(specs("quiet").labels), labels.OWNER: world.paths.owner})
    make_socket_folder(world.paths, engine_id)
    write_key(world.paths, engine_id, "k")
    await world.store.mark_proven(engine_id, 1.0)
    await world.store.set_desired("m", Desired.RUNNING, "t", 1.0)
    world.d.desired = Desired.RUNNING
    adopter = Adopter(world.context, podman)
    await adopter.adopt({"m": world.actor}.get, {"m": world.actor})
    world.run()
    await until(lambda: world.d.serving_engine is not None, LIMIT, "adopted")
    engine = world.d.serving_engine
    assert engine is not None
    assert engine.container_id == container
    engine.unfollow()
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    await until(lambda: ended(engine.pid or 0), LIMIT, "its end")
    assert world.d.serving_engine is engine, "nobody has told"
    await adopter.relist([world.actor])
    await until(lambda: world.d.serving_engine not in (None, engine), LIMIT, "another engine serves")
    assert "engine_ended" in world.journal_codes()
    await adopter.close()
