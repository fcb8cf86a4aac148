"""What a real engine shows in a real container, kept, shown, and counted on by the next plan."""

from __future__ import annotations

import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from api.cli.main import main
from tests.models import generate as g
from tests.stack.stack import Stack
from tests.stack_fixture import MakeStack

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]
MIB = 1 << 20


def learned(stack: Stack, name: str, *what: str) -> Any:
    """What is known of a model's combination; None before there is anything, or anything of that kind."""
    found = (m for m in stack.get("/api/v1/measurements") if m["model"] == name)
    return next((m for m in found if all(m[key] is not None for key in what)), None)


def planned(stack: Stack, name: str) -> Any:
    answer = stack.send("POST", "/api/v1/plans", {"model": name})
    assert answer.status_code == 200, answer.text
    return answer.json()["plan"]


def test_a_start_teaches_and_the_next_plan_knows(
    make_stack: MakeStack, test_models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stack = make_stack(scale=0.02)
    stack.define("plain", test_models / g.TARGET, method="none")
    with stack:
        first = planned(stack, "plain")
        stack.start("plain")
        known = stack.wait(lambda: learned(stack, "plain"), what="a measurement")
        assert (known["runtime"], known["arch"], known["method"], known["starts"]) == ("llama.cpp", "cpu", "none", 1)
        assert 0 < known["load_s"] < 60
        assert known["memory"] is None  # it took less than expected, and its caches are empty yet
        assert planned(stack, "plain")["expected_memory"]["correction"] == 0

        # once it has worked, the next plan counts on what it took, and says so
        for letter in "ab":
            assert stack.chat("plain", 8, letter * 1500).status_code == 200
        known = stack.wait(lambda: learned(stack, "plain", "memory"), what="a residual")
        memory = stack.deployment("plain")["engine"]["memory"]
        assert memory["expected"]["total"] == first["expected_memory"]["total"]
        assert 20 * MIB < memory["observed"] < 600 * MIB  # 34 to 110 MiB were seen for this image and small models
        likely = memory["expected"]["total"] - memory["expected"]["margin"]
        assert known["memory"] == pytest.approx(memory["observed"] - likely, abs=0.02 * memory["observed"])
        second = planned(stack, "plain")
        assert second["expected_memory"]["correction"] < 0
        assert "one start here" in next(r["text"] for r in second["reasons"] if r["code"] == "memory_measured")
        corrected = second["expected_memory"]["total"] - second["expected_memory"]["margin"]
        assert memory["observed"] * 0.98 <= corrected < likely

        # speed comes from what one request alone decoded, not from the proof
        assert known["tokens_s"] is None
        for _ in range(3):
            stack.chat("plain", 200)
            stack.wait(lambda: stack.deployment("plain")["in_flight"] == 0, what="nothing in flight")
        fast = stack.wait(lambda: learned(stack, "plain", "tokens_s"), what="a speed")["tokens_s"]
        assert fast > 10

        # it outlives the daemon, and can be forgotten
        stack.kill_daemon(signal.SIGTERM)
        stack.start_daemon()
        kept_ones = learned(stack, "plain", "tokens_s", "memory")
        assert kept_ones is not None
        assert kept_ones["starts"] == 1
        stack.want("plain", "stopped")  # a running engine goes on teaching
        stack.wait_state("plain", "stopped")
        capsys.readouterr()
        assert main(["--state-dir", str(stack.folder), "measured", "ls"]) == 0
        assert "plain" in capsys.readouterr().out
        assert main(["--state-dir", str(stack.folder), "measured", "rm", "plain"]) == 0
        assert "forgot 1 combination" in capsys.readouterr().out
        assert stack.get("/api/v1/measurements") == []


def test_a_killed_engine_says_nothing_and_a_lost_ledger_loses_only_itself(
    make_stack: MakeStack, test_models: Path
) -> None:
    stack = make_stack(scale=0.02)
    stack.define("plain", test_models / g.TARGET, method="none")
    stack.paths.measurements.write_bytes(b"no database" * 1000)
    with stack:
        assert stack.paths.measurements.with_name("measured.db.unreadable").exists()
        (view,) = stack.start("plain")
        stack.wait(lambda: learned(stack, "plain"), what="a measurement")
        stack.podman("kill", view["engine"]["container_id"])
        stack.wait(lambda: [void for void, _ in kept(stack)] == [1, 0], what="the first one's void, and the next one's")
        assert [peak is None for _, peak in kept(stack)] == [True, False]
        assert learned(stack, "plain")["starts"] == 2  # both took their time to be ready


def kept(stack: Stack) -> list[tuple[int, int | None]]:
    """Whether each start's memory is void, and its peak, the oldest first."""
    db = sqlite3.connect(stack.paths.measurements)
    try:
        return db.execute("SELECT void, peak FROM starts ORDER BY at").fetchall()
    finally:
        db.close()
