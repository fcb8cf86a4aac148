"""Reload applies only what changed; a bad file changes nothing; what ships anew restarts nothing."""

from __future__ import annotations

import os
import shutil
import signal
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


def outrider(stack: Stack, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "api.cli", "--state-dir", str(stack.folder), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def ids(stack: Stack) -> dict[str, Any]:
    return {d["deployment"]: d["engine"]["container_id"] for d in stack.get("/api/v1/deployments")}


@pytest.fixture
def three(make_stack: MakeStack, test_models: Path) -> Any:
    stack = make_stack()
    for name in ("a", "b", "c"):
        stack.define(name, test_models / g.TARGET, method="none")
    with stack:
        stack.start("a", "b", "c")
        yield stack


@pytest.mark.slow
def test_a_reload_touches_only_the_model_that_changed(three: Stack, test_models: Path) -> None:
    before = ids(three)
    three.define("b", test_models / g.TARGET, method="none", context=1024)
    dry = outrider(three, "reload", "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert "context" in dry.stdout + dry.stderr
    assert "1024" in dry.stdout + dry.stderr
    assert ids(three) == before
    done = outrider(three, "reload")
    assert done.returncode == 0, done.stderr
    until_sync(lambda: ids(three)["b"] != before["b"], 30, "b has moved")
    three.wait_state("b", "ready")
    after = ids(three)
    assert (after["a"], after["c"]) == (before["a"], before["c"])
    assert three.deployment("b")["engine"]["context"] == 1024
    assert [e["text"] for e in three.events() if e["code"] == "reloaded"] == ["model b changed"]
    assert three.text("b", 20) == recital(20)
    # the same by signal, with nothing changed: nothing happens
    settled = ids(three)
    assert three.daemon is not None
    os.kill(three.daemon.pid, signal.SIGHUP)
    three.define("c", test_models / g.TARGET, method="none", speculation={"dwell_s": 99.0})
    assert outrider(three, "reload").returncode == 0
    assert ids(three) == settled, "a policy is not what launches"


@pytest.mark.slow
def test_a_bad_file_changes_nothing(three: Stack) -> None:
    before = ids(three)
    file = three.paths.models_d / "b.toml"
    good = file.read_text()
    file.write_text(good.replace('"context"', '"contxt"').replace("context =", "contxt ="))
    bad = outrider(three, "reload")
    assert bad.returncode == 1
    assert "b.toml" in bad.stderr
    assert "contxt" in bad.stderr
    assert "context" in bad.stderr, "a hint says what was meant"
    check = outrider(three, "config", "check")
    assert check.returncode == 1
    assert "contxt" in check.stdout + check.stderr
    assert three.daemon is not None
    os.kill(three.daemon.pid, signal.SIGHUP)
    until_sync(lambda: "config_invalid" in three.codes(), 10, "the journal says so")
    assert ids(three) == before
    assert three.text("b", 20) == recital(20)
    file.write_text(good)
    assert outrider(three, "reload").returncode == 0
    assert ids(three) == before


@pytest.mark.slow
def test_a_model_that_is_no_longer_defined_is_stopped_and_a_new_one_can_start(three: Stack, test_models: Path) -> None:
    before = ids(three)
    (three.paths.models_d / "b.toml").unlink()
    three.define("d", test_models / g.TARGET, method="none")
    assert outrider(three, "reload").returncode == 0
    until_sync(lambda: before["b"] not in three.containers(), 30, "b is gone")
    three.start("d")
    assert three.text("d", 20) == recital(20)
    now = ids(three)
    assert (now["a"], now["c"]) == (before["a"], before["c"])
    assert three.chat("b").status_code == 404


@pytest.mark.slow
def test_what_the_planner_would_choose_now_shows_as_drift_and_restarts_nothing(three: Stack, test_models: Path) -> None:
    """Other defaults, as an upgrade of the catalogue brings them: `drifted`, and `apply` acts."""
    before = ids(three)
    three.kill_daemon()
    three.define("a", test_models / g.TARGET, method="none", context=1024)  # changed while nobody looked
    three.start_daemon()
    until_sync(lambda: three.deployment("a")["drifted"], 20, "drift is seen")
    assert three.deployment("a")["engine"]["container_id"] == before["a"]
    assert not three.deployment("c")["drifted"]
    assert outrider(three, "apply", "a", "--wait").returncode == 0
    until_sync(lambda: ids(three)["a"] != before["a"], 30, "a has moved")
    three.wait_state("a", "ready")
    assert not three.deployment("a")["drifted"]
    assert {k: v for k, v in ids(three).items() if k != "a"} == {k: v for k, v in before.items() if k != "a"}


@pytest.mark.slow
def test_weights_may_lie_in_a_folder_that_the_owner_names(
    make_stack: MakeStack, test_models: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "weights"
    folder.mkdir()
    tmp_path.chmod(0o755)
    shutil.copyfile(test_models / g.TARGET, folder / "mine.gguf")
    stack = make_stack()
    stack.define("m", test_models / g.TARGET, method="none")
    file = stack.paths.models_d / "m.toml"
    file.write_text(file.read_text().replace(f'"m/{g.TARGET}"', f'"{folder}/mine.gguf"'))
    with stack:
        stack.want("m", "running")
        refused = stack.wait_state("m", "failed")
        assert refused["reason"]["code"] == "spec_refused"
        assert "[store] folders" in refused["reason"]["hint"]
        stack.write_settings(f'[store]\nfolders = ["{folder}"]\n')
        assert outrider(stack, "reload").returncode == 0
        stack.start("m")
        assert stack.text("m", 20) == recital(20)
