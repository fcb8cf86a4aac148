"""An engine whose published port leads nowhere while it answers inside: the way is at fault, and not the engine.

llama.cpp stands in for a runtime that has no unix socket (SGLang needs a GPU); Podman, the bridge and the rule that
swallows the port are real.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from containers import labels, netns
from containers.podman import Podman
from containers.ports import Ports
from containers.spec import ContainerSpec, Mount, Network
from orchestrator.clock import SystemClock
from orchestrator.engine import Engine
from orchestrator.engine_client import EngineClient
from orchestrator.runner import CONTAINER_PORT
from orchestrator.stopping import network_path, path_watch
from orchestrator.stopping.network_path import Ends, Way
from orchestrator.stopping.path_watch import CODE, PathWatch
from orchestrator.timing import Timing
from orchestrator.views import State
from tests.daemon.world import World, a_plan
from tests.models import generate as g
from tests.runtimes.test_ports import STAND_IN, leads_nowhere
from tests.stack.stack import Stack
from tests.waiting import until

QUICK = Timing(reconcile_period=0.05)


@pytest.mark.parametrize(
    ("ends", "way", "reason"),
    [
        (Ends(True, True, None, False, None), Way.OPEN, "answers"),
        (Ends(False, False, 200, True, True), Way.BROKEN, "answers_inside"),
        # whoever keeps the port bound takes connections and passes nothing on
        (Ends(False, True, 503, True, True), Way.BROKEN, "answers_inside"),
        (Ends(False, False, None, False, True), Way.BROKEN, "listens_inside"),
        # the false alarms: an engine that hangs, one that ended, one that nobody can look at
        (Ends(False, True, None, True, True), Way.UNKNOWN, "silent_inside"),
        (Ends(False, True, None, False, True), Way.UNKNOWN, "inside_not_seen"),
        (Ends(False, False, None, True, False), Way.UNKNOWN, "silent_inside"),
        (Ends(False, False, None, False, None), Way.UNKNOWN, "inside_not_seen"),
    ],
)
def test_which_end_is_at_fault(ends: Ends, way: Way, reason: str) -> None:
    decision = network_path.decide(ends)
    assert (decision.action, decision.reason) == (way, reason)


class Ported:
    """A world whose one engine runs in a real container with a real port."""

    def __init__(self, world: World, engine: Engine) -> None:
        self.world, self.engine = world, engine
        self.watch = PathWatch(world.context)
        self.renewed: list[int] = []
        world.actor.renew = self._renew  # type: ignore[method-assign]
        world.runner.client = lambda engine: EngineClient(  # type: ignore[method-assign]
            socket=None, port=engine.port, key=engine.key, timeout=2
        )

    async def _renew(self, generation: int) -> None:
        self.renewed.append(generation)

    async def look(self) -> None:
        await self.watch.look([self.world.actor])

    async def told(self) -> list[Any]:
        return [e async for e in self.world.journal.follow() if e.code == CODE]


@pytest.fixture
async def ported(
    tmp_path: Path, podman: Podman, embedded_image: str, test_models: Path, podman_owner: str
) -> AsyncIterator[Ported]:
    port = Ports(SystemClock().now).take()
    spec = ContainerSpec(
        name=f"outrider-t-{podman_owner[:8]}-{secrets.token_hex(4)}",
        image=embedded_image,
        argv=("-m", f"/models/{g.TARGET}", "--host", "0.0.0.0", "--port", str(CONTAINER_PORT), "-t", "1", "-c", "512"),
        labels=labels.owned_by(podman_owner),
        mounts=(Mount(str(test_models), "/models"),),
        network=Network.BRIDGE,
        host_port=port,
        container_port=CONTAINER_PORT,
    )
    container = await podman.create(spec)
    world = await World.open(tmp_path, QUICK)
    try:
        await podman.start(container)
        state = await podman.inspect(container)
        assert state is not None
        engine = Engine("a" * 16, "m", 1, a_plan(), "key", None, port, 0.0, State.READY, container, state.pid)
        world.d.engines.append(engine)
        made = Ported(world, engine)

        async def answers() -> bool:
            pid = engine.pid or 0
            return await asyncio.to_thread(netns.status_inside, pid, CONTAINER_PORT, "/health", limit=2) == 200

        await until(answers, 30, "it has loaded")
        yield made
    finally:
        await world.close()
        await podman.remove(container)


@pytest.mark.real
@pytest.mark.timeout(120)
async def test_a_port_that_dies_after_ready_is_given_up_and_the_engine_is_not_blamed(
    ported: Ported, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path_watch, "LIMIT", 0.4)
    engine, pid = ported.engine, ported.engine.pid or 0
    for _ in range(3):
        await ported.look()
    assert ported.renewed == []
    assert engine.port is not None
    with leads_nowhere(engine.port):
        await ported.look()
        assert ported.renewed == [], "one look is no proof"
        await ported.look()
        assert ported.renewed == [1]
        broken = await ported.watch.broken(engine)
        assert broken is not None
        assert broken.code == CODE
    (told,) = await ported.told()
    assert told.evidence == {
        "generation": 1,
        "looks": 2,
        "port": engine.port,
        "reason": "answers_inside",
        "connected": False,
        "inside": 200,
        "listens": True,
    }
    assert "no failure is counted" in told.text
    assert (ported.world.d.failures.count, ported.world.d.restarts) == (0, 0)
    assert await ported.watch.broken(engine) is None

    # the false alarm: an engine that hangs is silent at both ends, and its way is none of this rule's business
    os.kill(pid, signal.SIGSTOP)
    try:
        for _ in range(3):
            await ported.look()
        assert await ported.watch.broken(engine) is None
    finally:
        os.kill(pid, signal.SIGCONT)
    assert ported.renewed == [1]


@pytest.mark.real
@pytest.mark.timeout(120)
async def test_while_automation_is_paused_the_broken_way_is_only_shown(
    ported: Ported, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path_watch, "LIMIT", 0.4)
    ported.world.context.automation.pause("m", "ops")
    assert ported.engine.port is not None
    with leads_nowhere(ported.engine.port):
        for _ in range(3):
            await ported.look()
    assert ported.renewed == []
    (issue,) = ported.world.issues.list()
    assert (issue.code, issue.subject) == (CODE, "m-1")
    assert issue.hint is not None
    assert "outrider restart m" in issue.hint
    await ported.look()
    assert ported.world.issues.list() == (), "it ends by itself"


def test_a_network_that_cannot_be_entered_is_an_error_and_not_an_answer() -> None:
    with pytest.raises(OSError, match="No such"):
        netns.status_inside(4194302, 1, "/", limit=1)
    assert netns.status_inside(os.getpid(), 1, "/", limit=1) is None, "nobody listens there"


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.timeout(120)
def test_a_whole_outrider_moves_an_engine_to_another_port(
    podman_socket: str, embedded_image: str, test_models: Path, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(STAND_IN)
    stack = Stack(podman_socket, environ={"PYTHONPATH": str(tmp_path)})
    stack.define("ported", test_models / g.TARGET, method="none")
    with stack:
        before = stack.start("ported")[0]["engine"]
        text = stack.text("ported")
        with leads_nowhere(before["port"]):
            stack.wait(lambda: CODE in stack.codes("ported"), 60, "it is found")

            def moved() -> Any:
                view = stack.deployment("ported")
                return view if view["state"] == "ready" and view["engine"]["port"] != before["port"] else None

            after = stack.wait(moved, 60, "another port")
            assert stack.text("ported") == text
        assert (after["restarts"], after["reason"], after["plan"]) == (0, None, before["plan"])
        assert "failed" not in stack.codes("ported")
        assert stack.containers() == [after["engine"]["container_id"]]
