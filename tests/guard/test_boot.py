"""The daemon starts on a machine that has just come up: one model after the other, and devices that come late."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.guard.conftest import GIB, FakeHost
from tests.guard.test_crash import issues, outrider
from tests.hosts.trees import Tree, strix_halo
from tests.models import generate as g
from tests.stack.stack import Stack
from tests.stack_fixture import MakeStack
from tests.waiting import until_sync

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]


def reason(stack: Stack, name: str) -> Any:
    return (stack.deployment(name)["reason"] or {}).get("code")


@pytest.mark.slow
def test_models_start_one_after_the_other_by_priority(
    make_stack: MakeStack, test_models: Path, host: FakeHost, tmp_path: Path
) -> None:
    """Two that come first and cannot start keep nobody waiting."""
    stack = make_stack(environ=host.environ, settings='[images]\npull = "never"\n', gateway=False)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF, and then nothing that makes sense")
    stack.define("gpu", test_models / g.TARGET, method="none", priority=9, image="llama-cpp-rocm")
    stack.define("broken", broken, method="none", priority=8)
    for name, priority in (("low", -1), ("high", 5), ("middle", 0)):
        stack.define(name, test_models / g.TARGET, method="none", priority=priority)
    names = ("broken", "gpu", "high", "low", "middle")
    with stack:
        for name in names:
            assert stack.want(name, "running").status_code < 300
        for name in ("high", "middle", "low"):
            stack.wait_state(name, "ready")
        assert stack.send("POST", "/api/v1/shutdown", {"engines": True}).status_code == 202
        assert stack.daemon is not None
        stack.daemon.wait(30)
        last = max(e["sequence"] for e in _journal(stack))
        stack.start_daemon()
        waiting = until_sync(lambda: reason(stack, "low") == "waiting_for_turn" and stack.deployment("low"), 20, "low")
        assert waiting["reason"]["text"] in ("waiting for its turn (after middle)", "waiting for its turn (after high)")
        stack.wait_state("low", "ready")
        told = [e for e in stack.events() if e["sequence"] > last]
        order = next(e["evidence"]["order"] for e in told if e["code"] == "starting_in_turn")
        assert order == ["gpu", "broken", "high", "middle", "low"]
        steps = [(e["code"], e["deployment"]) for e in told if e["code"] in ("starting", "ready")]
        wanted = ["high", "middle", "low"]
        assert steps == [(code, name) for name in wanted for code in ("starting", "ready")]
        assert (stack.deployment("gpu")["state"], reason(stack, "broken")) == ("waiting_device", "model_file")


def _journal(stack: Stack) -> list[Any]:
    """The journal, read while no daemon runs."""
    with closing(sqlite3.connect(stack.paths.database)) as db:
        return [{"sequence": row[0]} for row in db.execute("SELECT sequence FROM journal")]


@pytest.mark.slow
def test_a_gpu_that_comes_late_is_waited_for(make_stack: MakeStack, test_models: Path, host: FakeHost) -> None:
    """A Strix Halo whose driver has not loaded yet, in a tree of its own. What it then starts is an image that
    this machine does not have: that it gets so far is what can be shown here (the rest, in
    `tests/daemon/test_device_wait.py`)."""
    stack = make_stack(environ=host.environ, settings='[images]\npull = "never"\n', gateway=False)
    stack.define("m", test_models / g.TARGET, method="none", image="llama-cpp-rocm")
    host.memory(available=120 * GIB, total=124 * GIB)
    with stack:
        told = outrider(stack, "start", "--wait", "m")
        assert told.returncode == 1
        assert "error[waiting_device]: m is not started: m waits for a GPU of AMD" in told.stderr, told.stderr
        assert "starts by itself when the device is there" in told.stderr
        view = stack.wait_state("m", "waiting_device")
        assert view["reason"]["code"] == "waiting_device"
        assert "a GPU of AMD: its image llama-cpp-rocm is for AMD" in view["reason"]["text"]
        assert view["next_attempt_s"] is not None
        assert set(issues(stack, "waiting_device")) == {"m"}
        assert "waiting_device" in outrider(stack, "ps").stdout
        with stack.api() as api:
            metrics = api.get("/metrics").text
        assert 'outrider_deployment_state{deployment="m",state="waiting_device"} 1.0' in metrics
        assert stack.containers() == []

        tree = host.folder.with_name(f"{host.folder.name}-gpu")
        try:
            strix_halo(Tree(tree))
            for part in ("sys", "dev"):
                shutil.copytree(tree / part, host.folder / part, symlinks=True)
            until_sync(lambda: stack.get("/api/v1/host")["accelerators"], 30, "the GPU is seen")
            until_sync(lambda: reason(stack, "m") not in ("waiting_device", None), 30, "planned for the GPU")
            assert reason(stack, "m") == "image_missing", stack.deployment("m")
        finally:
            shutil.rmtree(tree, ignore_errors=True)
        assert issues(stack, "waiting_device") == {}
        planned = stack.send("POST", "/api/v1/plans", {"model": "m"}).json()["plan"]
        assert planned["devices"] == ["/dev/kfd", "/dev/dri/renderD128"]
