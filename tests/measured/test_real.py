"""What a real engine shows in a real container, kept, shown, and counted on by the next plan."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from api.cli.main import main
from tests.models import generate as g
from tests.stack.conftest import MakeStack
from tests.stack.stack import Stack

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]
MIB = 1 << 20


def learned(stack: Stack, name: str) -> Any:
    """What is known of a model's combination; None before there is anything."""
    return next((m for m in stack.get("/api/v1/measurements") if m["model"] == name and m["memory"] is not None), None)


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
        expected = first["expected_memory"]
        assert (known["runtime"], known["arch"], known["method"], known["starts"]) == ("llama.cpp", "cpu", "none", 1)
        assert 0 < known["load_s"] < 60

        # expected and observed, side by side
        memory = stack.deployment("plain")["engine"]["memory"]
        assert memory["expected"]["total"] == expected["total"]
        assert 20 * MIB < memory["observed"] < 400 * MIB  # 34 to 110 MiB were seen for this image
        likely = expected["total"] - expected["margin"]
        assert known["memory"] == memory["observed"] - likely

        # the next plan counts on it, and says so
        second = planned(stack, "plain")
        assert second["expected_memory"]["correction"] != 0
        reason = next(r for r in second["reasons"] if r["code"] == "memory_measured")
        assert "one start here" in reason["text"]
        corrected = second["expected_memory"]["total"] - second["expected_memory"]["margin"]
        assert abs(corrected - memory["observed"]) <= abs(likely - memory["observed"])

        # speed comes from what one request alone decoded, not from the proof
        assert known["tokens_s"] is None
        for _ in range(3):
            stack.chat("plain", 200)
            stack.wait(lambda: stack.deployment("plain")["in_flight"] == 0, what="nothing in flight")
        fast = stack.wait(lambda: learned(stack, "plain")["tokens_s"], what="a speed")
        assert fast > 10

        # it outlives the daemon, and can be forgotten
        stack.kill_daemon(signal.SIGTERM)
        stack.start_daemon()
        assert learned(stack, "plain")["tokens_s"] == fast
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
        (view,) = stack.start("plain")
        stack.wait(lambda: learned(stack, "plain"), what="a measurement")
        stack.podman("kill", view["engine"]["container_id"])

        def void() -> bool:
            """The first start's memory is void; its successor's may be known by now."""
            seen = stack.get("/api/v1/measurements")
            starts = stack.deployment("plain")["engine"]
            return bool(seen) and bool(starts) and starts["generation"] > view["engine"]["generation"]

        stack.wait(void, what="the next engine")
        stack.wait_state("plain", "ready")
        stack.wait(lambda: learned(stack, "plain"), what="the next measurement")
        (known,) = stack.get("/api/v1/measurements")
        assert known["starts"] == 2  # both took their time to be ready
    assert stack.paths.measurements.with_name("measured.db.unreadable").exists() or not stack.folder.exists()
