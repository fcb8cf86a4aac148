"""A takeover from a running process to a real engine in a real container, and the way back. systemd is a fake
(`systemctl.py`), since it does not run where tests do; all else is real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.models import generate as g
from tests.stack.stack import Stack
from tests.stack_fixture import MakeStack
from tests.takeover.conftest import Units
from tests.telling.golden import told
from tests.waiting import until_sync

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]
UNIT = "tiny.service"
MAY_COME = ("stop_escalated", "planned", "starting", "start_aborted", "stopped", "drained", "failed", "plan_unchanged")
"""How far ours is when its time is up, depends on the machine."""


def outrider(stack: Stack, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "api.cli", "--state-dir", str(stack.folder), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)


def runs(pid: int | None) -> bool:
    try:
        return pid is not None and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_a_unit_comes_back_when_ours_is_late_and_gives_way_when_it_is_not(
    make_stack: MakeStack, units: Units, test_models: Path
) -> None:
    stack = make_stack()
    file = stack.paths.store / stack.put_file("tiny", test_models / g.TARGET)
    line = f"ExecStart=/usr/local/bin/llama-server -m {file} -c 1024 -np 1 -t 1 --alias tiny --port 18123"
    units.write(UNIT, f"[Service]\n{line}\nRestart=always", active=False, process=True)
    subprocess.run(["systemctl", "start", UNIT], check=True, timeout=10)
    (units.folder / "asked").unlink()
    first = units.read(UNIT)["pid"]
    try:
        with stack:
            assert runs(first)
            late = outrider(stack, "import", "--takeover", UNIT, "--name", "tiny", "--write", "--within", "0.05")
            assert late.returncode == 5, late.stderr
            assert f"{UNIT} runs again" in late.stderr
            second = units.read(UNIT)["pid"]
            until_sync(lambda: not runs(first), 10, "the first process is gone")
            assert runs(second)
            assert stack.deployment("tiny")["state"] == "stopped"
            assert stack.containers() == [], "nothing of ours is left beside it"
            told(stack, "tiny", "takeover-rolled-back", without=MAY_COME)

            done = outrider(stack, "import", "--takeover", UNIT, "--name", "tiny", "--write", "--json")
            assert done.returncode == 0, done.stderr
            document = json.loads(done.stdout)
            assert (document["done"], document["reason"], document["model"]) == (True, "ready", "tiny")
            until_sync(lambda: not runs(second), 10, "the unit's process is gone")
            assert stack.chat("tiny", 4).status_code == 200
            assert units.did() == [f"stop {UNIT}", f"start {UNIT}", f"stop {UNIT}", f"disable {UNIT}"]
            told(stack, "tiny", "takeover", without=("planned",))
    finally:
        if runs(units.read(UNIT)["pid"]):
            os.kill(units.read(UNIT)["pid"], 9)


@pytest.mark.slow
def test_a_daemon_killed_on_the_way_leaves_one_of_the_two(
    make_stack: MakeStack, units: Units, test_models: Path
) -> None:
    """Killed right after it was asked for: the new daemon goes on, and the takeover with it."""
    stack = make_stack()
    file = stack.paths.store / stack.put_file("tiny", test_models / g.TARGET)
    line = f"ExecStart=/usr/local/bin/llama-server -m {file} -c 1024 -np 1 -t 1 --alias tiny --port 18123"
    units.write(UNIT, f"[Service]\n{line}\nRestart=always")
    with stack:
        command = [sys.executable, "-m", "api.cli", "--state-dir", str(stack.folder)]
        command += ["import", "--takeover", UNIT, "--name", "tiny", "--write", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as taking:
            try:
                stack.wait(
                    lambda: "starting" in stack.codes("tiny") if _defined(stack) else False, what="it is started"
                )
                stack.kill_daemon()
                stack.start_daemon()
                out, err = taking.communicate(timeout=60)
            finally:
                taking.kill()
        assert taking.returncode == 0, err
        assert json.loads(out)["done"]
        assert len(stack.containers()) == 1
        assert units.did() == [f"stop {UNIT}", f"disable {UNIT}"]
        assert stack.chat("tiny", 4).status_code == 200


def _defined(stack: Stack) -> bool:
    return any(view["deployment"] == "tiny" for view in stack.get("/api/v1/deployments"))
