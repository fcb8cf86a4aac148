"""With a whole Outrider and a real engine: its story, and a pause that outlives the daemon."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.models import generate as g
from tests.stack.stack import Stack
from tests.stack_fixture import MakeStack
from tests.telling.golden import told


def outrider(stack: Stack, *words: str) -> subprocess.CompletedProcess[str]:
    """One command of the command line against this stack."""
    command = [sys.executable, "-m", "api.cli", "--state-dir", str(stack.folder), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.timeout(180)
def test_a_killed_engine_and_a_pause(make_stack: MakeStack, test_models: Path) -> None:
    stack = make_stack(gateway=False)
    stack.define("plain", test_models / g.TARGET, method="none")
    with stack:
        stack.start("plain")
        stack.wait(lambda: "ready" in stack.codes("plain"), what="it serves")
        view = stack.deployment("plain")
        os.kill(view["engine"]["pid"], signal.SIGKILL)
        stack.wait(lambda: stack.deployment("plain")["restarts"] == 1, what="the end is seen")
        stack.wait_state("plain", "ready", may_fail=True)
        told(stack, "plain", "stack-killed")

        said = outrider(stack, "why", "plain")
        assert said.returncode == 0, said.stderr
        assert said.stdout.startswith("plain serves. The last trouble was ")
        document = json.loads(outrider(stack, "why", "plain", "--since", "1h", "--json").stdout)
        assert [beat["code"] for beat in document["beats"]][-1] == "ready"

        assert "plain is paused, by cli:" in outrider(stack, "pause", "plain").stdout
        first = json.loads(outrider(stack, "pause", "plain", "--json").stdout)
        assert [one["deployment"] for one in first] == ["plain"]
        assert json.loads(outrider(stack, "pause", "plain", "--json").stdout) == first, (
            "saying it again changes nothing"
        )
        assert stack.codes("plain").count("paused") == 1
        unknown = outrider(stack, "pause", "nobody", "--json")
        assert (unknown.returncode, json.loads(unknown.stdout)["error"]["code"]) == (3, "not_found")
        assert "paused    plain, by cli:" in outrider(stack, "status").stdout
        assert json.loads(outrider(stack, "status", "--json").stdout)["pauses"] == first
        stack.kill_daemon()
        stack.start_daemon()
        assert stack.deployment("plain")["paused_by"].startswith("cli:")
        with stack.api() as api:
            assert 'outrider_deployment_paused{deployment="plain"} 1.0' in api.get("/metrics").text
        assert outrider(stack, "pause", "--json").returncode == 0
        refused = outrider(stack, "resume", "plain")
        assert refused.returncode == 4
        assert "`outrider resume` without a name" in refused.stderr
        assert outrider(stack, "resume").stdout == "nothing is paused: Outrider acts by itself\n"
        again = outrider(stack, "resume", "plain", "--json")
        assert (again.returncode, json.loads(again.stdout)) == (0, [])
        assert outrider(stack, "resume", "nobody").returncode == 3
        assert stack.deployment("plain")["paused_by"] is None
        assert outrider(stack, "why", "nobody").returncode == 3
        told(stack, "plain", "stack-paused-and-resumed")
