"""The database and Podman, without which the daemon cannot work, go bad or away under a running stack."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from containers import service
from orchestrator.store import Store
from tests.models import generate as g
from tests.models.tokenizer import recital
from tests.podman_fixture import run_apart
from tests.stack.stack import Stack
from tests.stack_fixture import MakeStack
from tests.waiting import until_sync

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]


@pytest.mark.slow
def test_a_database_of_garbage_is_set_aside(make_stack: MakeStack, test_models: Path) -> None:
    """What was desired is lost with it; that is said, and the daemon works on with a new one."""
    stack = make_stack()
    stack.define("m", test_models / g.TARGET, method="none")
    with stack:
        stack.start("m")
        stack.kill_daemon()
        for suffix in ("-wal", "-shm"):
            stack.paths.database.with_name(stack.paths.database.name + suffix).unlink(missing_ok=True)
        stack.paths.database.write_bytes(b"\xa5garbage" * 5000)
        stack.start_daemon()
        aside = stack.paths.database.with_name("outrider.db.unreadable-1")
        assert aside.read_bytes() == b"\xa5garbage" * 5000
        told = next(event for event in stack.events() if event["code"] == "database_set_aside")
        assert str(aside) in told["text"]
        assert "database_set_aside" in stack.log("daemon")
        stack.start("m")
        assert stack.text("m", 20) == recital(20)
        assert len(stack.containers()) == 1
        stack.kill_daemon()
        rows = run_apart(_desired(stack))
        assert rows == {"m": "running"}, "the new database holds what is desired from now on"


async def _desired(stack: Stack) -> dict[str, str]:
    store = await Store.open(stack.paths.database)
    try:
        return {row.deployment: row.desired.value for row in await store.desired()}
    finally:
        await store.close()


@pytest.fixture
def own_podman(embedded_image: str) -> Iterator[service.Service]:
    """A Podman service that nobody else uses. It shares the storage, so the image is there."""
    with tempfile.TemporaryDirectory(prefix="or-bad-") as folder:
        found = run_apart(service.own(Path(folder), limit=30))
        yield found
        # whoever was started last in that folder
        run_apart(run_apart(service.own(Path(folder), limit=30)).stop())


@pytest.mark.slow
def test_podman_goes_away_in_the_middle_and_comes_back(own_podman: service.Service, test_models: Path) -> None:
    stack = Stack(own_podman.socket)
    for name in ("bystander", "late"):
        stack.define(name, test_models / g.TARGET, method="none")
    with stack:
        before = stack.start("bystander")[0]["engine"]
        assert own_podman.pid is not None
        os.kill(own_podman.pid, signal.SIGKILL)
        until_sync(lambda: stack.get("/api/v1/health")["podman"] is False, 20, "it was noticed")
        health = stack.get("/api/v1/health")
        assert health["ok"] is False
        problem = next(p for p in health["problems"] if p["code"] == "podman_unreachable")
        assert "podman.socket" in problem["hint"]
        assert stack.codes().count("podman_unreachable") == 1, "said once, not each time it is tried"
        assert stack.text("bystander", 40) == recital(40), "traffic does not need Podman"
        assert stack.deployment("bystander")["state"] == "ready"
        stack.want("late", "running")
        view = stack.wait_state("late", "failed", may_fail=True)
        assert view["reason"]["code"] == "podman_unreachable"
        assert view["reason"]["text"].endswith(f"no answer from {own_podman.socket}: connection refused")
        assert "podman.socket" in view["reason"]["hint"]
        assert view["next_attempt_s"] is not None, "it is tried again by itself"
        run_apart(service.own(own_podman.run_dir, limit=30))
        until_sync(lambda: stack.get("/api/v1/health")["podman"] is True, 20, "Podman is back")
        assert "podman_back" in stack.codes()
        stack.wait_state("late", "ready", may_fail=True)
        after = stack.deployment("bystander")["engine"]
        assert (after["container_id"], after["pid"]) == (before["container_id"], before["pid"])
        assert stack.text("late", 20) == stack.text("bystander", 20) == recital(20)
