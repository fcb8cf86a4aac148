"""The verbs of the API and the command line on a whole stack: restart, drain, logs, events, model add and rm."""

from __future__ import annotations

import concurrent.futures
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.models import generate as g
from tests.models.tokenizer import recital
from tests.stack.stack import Stack
from tests.stack_fixture import MakeStack
from tests.waiting import until_sync

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]


def outrider(stack: Stack, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "api.cli", "--state-dir", str(stack.folder), *words]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=90, check=False)


def as_json(stack: Stack, *words: str) -> Any:
    done = outrider(stack, *words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_the_life_of_a_model_from_file_to_removal(make_stack: MakeStack, test_models: Path) -> None:
    """All of it by the command line, as its owner would."""
    stack = make_stack()
    with stack:
        unknown = outrider(stack, "start", "m")
        assert (unknown.returncode, "not_found" in unknown.stderr, "hint" in unknown.stderr) == (3, True, True)
        added = outrider(
            stack,
            "model",
            "add",
            "m",
            "--path",
            str(test_models / g.TARGET),
            "--drafter",
            f"fast:dflash:{test_models / g.DFLASH}",
            "--threads",
            "1",
        )
        assert added.returncode == 0, added.stderr
        assert [m["name"] for m in as_json(stack, "models") if m["files_ok"]] == ["m"]
        started = outrider(stack, "start", "m", "--wait")
        assert started.returncode == 0, started.stderr
        row = next(d for d in as_json(stack, "ps") if d["deployment"] == "m")
        assert (row["state"], row["desired"], row["engine"]["method"]) == ("ready", "running", "dflash")
        assert row["engine"]["socket"] is not None
        assert row["engine"]["port"] is None

        def told() -> Any:
            sample = as_json(stack, "top")["sample"]
            return sample is not None and [e for e in sample["engines"] if e["id"] == row["engine"]["id"]]

        (mine,) = until_sync(told, 10, "a sample of the engine")
        assert mine["memory"] > mine["rss"] > 1 << 20, "by its control group"

        said = outrider(stack, "run", "m", "--prompt", "Say it.", "--max-tokens", "40")
        assert said.returncode == 0, said.stderr
        assert recital(40).strip() in said.stdout

        lines = outrider(stack, "logs", "m", "--tail", "500")
        assert "llama" in lines.stdout + lines.stderr or "slot" in lines.stdout

        first = row["engine"]
        assert outrider(stack, "restart", "m", "--wait").returncode == 0
        again = until_sync(
            lambda: next(d["engine"] for d in as_json(stack, "ps") if d["deployment"] == "m"), 10, "an engine"
        )
        assert again["generation"] == first["generation"] + 1
        assert again["plan"] == first["plan"], "a restart keeps the plan"

        assert outrider(stack, "drain", "m").returncode == 0
        until_sync(lambda: stack.chat("m", 5).status_code == 503, 10, "nothing more is admitted")
        assert stack.deployment("m")["engine"]["container_id"] == again["container_id"], "the engine stays"
        assert outrider(stack, "start", "m", "--wait").returncode == 0
        until_sync(lambda: stack.chat("m", 5).status_code == 200, 10, "admitted again")

        busy = outrider(stack, "model", "rm", "m")
        assert busy.returncode == 4, "a running model is not removed"
        assert outrider(stack, "stop", "m", "--wait").returncode == 0
        assert stack.containers() == []
        assert outrider(stack, "start", "m", "--no-wait").returncode == 0
        assert outrider(stack, "stop", "m", "--wait").returncode == 0
        assert outrider(stack, "model", "rm", "m", "--weights").returncode == 0
        assert not (stack.paths.store / "m").exists()
        codes = [e["code"] for e in as_json(stack, "events")]
    for code in ("desired_running", "planned", "starting", "ready", "restart", "drain", "stopped"):
        assert code in codes


@pytest.mark.slow
def test_requests_wait_while_an_engine_loads_and_are_all_served(make_stack: MakeStack, heavy_models: Path) -> None:
    stack = make_stack()
    stack.define("m", heavy_models / g.TARGET_HEAVY, method="none", parallel=2)
    with stack:
        stack.want("m", "running")
        # the first request comes while nothing serves yet
        assert stack.text("m", 20) == recital(20)
        held = stack.send("POST", "/api/v1/deployments/m/restart")
        assert held.status_code < 300
        assert [stack.text("m", 20) for _ in range(3)] == [recital(20)] * 3
        stack.want("m", "stopped")
        until_sync(lambda: stack.chat("m", 5).status_code == 503, 20, "a stopped model is refused")
        refused = stack.chat("m", 5)
        assert refused.json()["error"]["code"]
        assert stack.codes("m").count("failed") == 0


@pytest.mark.slow
def test_two_cycles_tell_slots_apart(make_stack: MakeStack, test_models: Path) -> None:
    """Two prompts at once through one speculating engine: no foreign character in either answer."""
    stack = make_stack()
    stack.define("m", test_models / g.TARGET_TWO, drafter=test_models / g.DFLASH, method="dflash", parallel=2)
    with stack, concurrent.futures.ThreadPoolExecutor(2) as pool:
        stack.start("m")
        for _ in range(5):
            first = pool.submit(stack.text, "m", 200, prompt="Say it.")
            second = pool.submit(stack.text, "m", 200, prompt=f"Say it {g.MARKER} please.")
            assert first.result(60) == recital(200)
            assert second.result(60) == recital(200, second=True)
