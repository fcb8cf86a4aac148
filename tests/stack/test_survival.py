"""The daemon may die at any moment: traffic goes on, the next daemon adopts, nothing is orphaned."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from containers import service
from tests.models import generate as g
from tests.models.tokenizer import recital
from tests.stack.stack import Stack
from tests.stack_fixture import MakeStack
from tests.waiting import until_sync

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]
LONG = 1500


class Stream(threading.Thread):
    """One streamed chat, read to its end."""

    def __init__(self, stack: Stack, model: str, tokens: int = LONG) -> None:
        super().__init__(daemon=True)
        self._url = f"{stack.base_url}/chat/completions"
        self._body = {
            "model": model,
            "messages": [{"role": "user", "content": "x"}],
            "max_tokens": tokens,
            "temperature": 0,
            "stream": True,
        }
        self.text = ""
        self.done = False
        self.error: str | None = None

    def run(self) -> None:
        try:
            with httpx.stream("POST", self._url, json=self._body, timeout=60) as answer:
                for line in answer.iter_lines():
                    self._line(line)
        except httpx.HTTPError as error:
            self.error = repr(error)

    def _line(self, line: str) -> None:
        if line == "data: [DONE]":
            self.done = True
        elif line.startswith("data: "):
            data: Any = json.loads(line[6:])
            if "error" in data:
                self.error = str(data["error"])
            for choice in data.get("choices", ()):
                self.text += choice["delta"].get("content") or ""


def test_streams_survive_the_daemon_and_the_engine_is_adopted(make_stack: MakeStack, heavy_models: Path) -> None:
    stack = make_stack()
    stack.define("m", heavy_models / g.TARGET_HEAVY, method="none", parallel=2, context=4096)
    with stack:
        before = stack.start("m")[0]["engine"]
        streams = [Stream(stack, "m", 400) for _ in range(2)]
        for stream in streams:
            stream.start()
        until_sync(lambda: all(len(s.text) > 5 for s in streams), 30, "both streams run")
        stack.kill_daemon()
        assert not any(s.done for s in streams), "the daemon died while the streams ran"
        assert stack.text("m", 20) == recital(20), "the gateway routes on without the daemon"
        stack.start_daemon()
        after = stack.wait_state("m", "ready")["engine"]
        for stream in streams:
            stream.join(60)
        assert [(s.error, s.done, s.text == recital(400)) for s in streams] == [(None, True, True)] * 2
        assert (after["container_id"], after["pid"], after["generation"]) == (
            before["container_id"],
            before["pid"],
            before["generation"],
        )
        assert "adopt" in stack.codes("m")
        assert stack.text("m", 20) == recital(20)
        # and the adopted engine is as watched as a started one
        os.kill(after["pid"], 9)
        until_sync(lambda: stack.deployment("m")["restarts"] == 1, 20, "the crash was noticed")
        again = stack.wait_state("m", "ready", may_fail=True)["engine"]
        assert again["generation"] == before["generation"] + 1
        assert stack.containers() == [again["container_id"]]


@pytest.mark.parametrize(
    "wait", [0.0, 0.12, 0.3, *(pytest.param(t, marks=pytest.mark.slow) for t in (0.05, 0.2, 0.45))]
)
def test_a_daemon_killed_in_the_middle_of_a_start_leaves_no_orphan(
    make_stack: MakeStack, test_models: Path, wait: float
) -> None:
    stack = make_stack()
    stack.define("m", test_models / g.TARGET, method="none")
    with stack:
        assert stack.want("m", "running").status_code < 300
        threading.Event().wait(wait)  # where in the start the kill falls is the point of the test
        stack.kill_daemon()
        stack.start_daemon()
        ready = stack.wait_state("m", "ready")["engine"]
        until_sync(lambda: stack.containers() == [ready["container_id"]], 20, "one container")
        assert stack.text("m", 20) == recital(20)
        its_own = {ready["id"], f"{ready['id']}.key"}
        until_sync(lambda: {p.name for p in stack.paths.engines.iterdir()} == its_own, 20, "nobody else's files")


@pytest.mark.parametrize("wait", [0.0, 0.1, *(pytest.param(t, marks=pytest.mark.slow) for t in (0.03, 0.25))])
@pytest.mark.slow
def test_a_daemon_killed_in_the_middle_of_a_stop_finishes_it(
    make_stack: MakeStack, test_models: Path, wait: float
) -> None:
    stack = make_stack()
    stack.define("m", test_models / g.TARGET, method="none")
    with stack:
        stack.start("m")
        assert stack.want("m", "stopped").status_code < 300
        threading.Event().wait(wait)
        stack.kill_daemon()
        stack.start_daemon()
        until_sync(lambda: stack.deployment("m")["state"] == "stopped", 20, "stopped")
        until_sync(lambda: stack.containers() == [], 20, "no container")
        until_sync(lambda: list(stack.paths.engines.iterdir()) == [], 20, "its files are gone")


@pytest.mark.slow
def test_a_podman_service_of_our_own_comes_back(embedded_image: str, test_models: Path) -> None:
    stack = Stack(None)
    stack.define("m", test_models / g.TARGET, method="none")
    with stack:
        before = stack.start("m")[0]["engine"]
        pid = service.running(stack.paths.run_dir)
        assert pid is not None, "this machine has a Podman service of its own, and ours was not needed"
        os.kill(pid, signal.SIGKILL)
        assert stack.text("m", 20) == recital(20), "traffic does not need Podman"
        until_sync(lambda: "podman_back" in stack.codes(), 60, "Podman is back")
        assert service.running(stack.paths.run_dir) not in (None, pid)
        assert stack.deployment("m")["engine"]["container_id"] == before["container_id"]
        stack.want("m", "stopped")
        stack.wait_state("m", "stopped")


@pytest.mark.slow
def test_a_start_in_flight_is_aborted_by_a_stop(make_stack: MakeStack, test_models: Path) -> None:
    stack = make_stack()
    stack.define("m", test_models / g.TARGET, method="none")
    with stack:
        for _ in range(3):
            stack.want("m", "running")
            stack.want("m", "stopped")
        until_sync(lambda: stack.deployment("m")["state"] == "stopped", 20, "stopped")
        until_sync(lambda: stack.containers() == [], 20, "no container")
        stack.start("m")
        assert stack.text("m", 20) == recital(20)


@pytest.mark.slow
def test_sigterm_ends_only_the_daemon(make_stack: MakeStack, test_models: Path) -> None:
    stack = make_stack()
    stack.define("m", test_models / g.TARGET, method="none")
    with stack:
        engine = stack.start("m")[0]["engine"]
        assert stack.daemon is not None
        stack.daemon.terminate()
        assert stack.daemon.wait(20) == 0
        assert stack.containers() == [engine["container_id"]]
        assert stack.text("m", 20) == recital(20)


@pytest.mark.slow
def test_two_daemons_on_one_state_folder(make_stack: MakeStack, test_models: Path) -> None:
    stack = make_stack()
    stack.define("m", test_models / g.TARGET, method="none")
    with stack:
        engine = stack.start("m")[0]["engine"]
        first = stack.daemon
        stack.start_daemon(wait=False)
        second = stack.daemon
        assert first is not None
        assert second is not None
        assert second.wait(20) == 4
        assert f"held by process {first.pid}" in stack.log("daemon")
        assert "hint:" in stack.log("daemon")
        stack.daemon = first
        assert stack.deployment("m")["engine"]["container_id"] == engine["container_id"]


@pytest.mark.slow
def test_a_stopped_deployment_stays_stopped_and_a_running_one_comes_back(
    make_stack: MakeStack, test_models: Path
) -> None:
    stack = make_stack()
    for name in ("a", "b"):
        stack.define(name, test_models / g.TARGET, method="none")
    with stack:
        stack.start("a", "b")
        stack.want("a", "stopped")
        stack.wait_state("a", "stopped")
        answer = stack.send("POST", "/api/v1/shutdown", {"engines": True})
        assert answer.status_code == 202
        assert stack.daemon is not None
        assert stack.daemon.wait(30) == 0
        assert stack.containers() == []
        stack.start_daemon()
        stack.wait_state("b", "ready")
        assert stack.deployment("a")["state"] == "stopped"
