"""`outrider import --takeover UNIT`: shown, done, and taken back. The daemon is a script here, for its bad moments;
`test_real` has a real one with a real engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli import fake
from tests.cli.conftest import Call
from tests.takeover.conftest import Units

UNIT = "qwen.service"
LINE = "ExecStart=/usr/bin/vllm serve Qwen/Qwen3.8-27B --max-model-len 8192 --port 8000"
TEXT = f"[Unit]\nDescription=a model\n[Service]\n{LINE}\nRestart=always\n[Install]\nWantedBy=multi-user.target"
NAME = "qwen3.8-27b"


@pytest.fixture(autouse=True)
def fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan for a GPU that this machine does not have; `test_nothing_is_touched_where_it_does_not_fit` undoes it."""
    said = {"fits": True, "code": None, "text": "vllm with none", "evidence": "untried"}
    monkeypatch.setattr("api.cli.importcommand.planned_here", lambda *_: said)


def view(state: str, **more: Any) -> dict[str, Any]:
    return {"deployment": NAME, "state": state, "desired": "running", "reason": None, "next_attempt_s": None, **more}


def answers(daemon: fake.Script, *states: Any) -> None:
    daemon.on("GET", "/deployments", [])
    daemon.on("POST", "/reload", {"changes": [], "applied": True})
    daemon.on("PUT", f"/deployments/{NAME}/desired", view("creating"))
    daemon.on("GET", f"/deployments/{NAME}", *states)


def wanted(daemon: fake.Script) -> list[str]:
    return [asked.body["state"] for asked in daemon.asked_for("PUT", f"/deployments/{NAME}/desired")]


def test_it_is_shown_and_nothing_is_touched(call: Call, units: Units) -> None:
    units.write(UNIT, TEXT)
    said = call("import", "--takeover", UNIT)
    assert said.code == 0, said.err
    assert f"1. {UNIT} is stopped" in said.out
    assert f"2. {NAME} is started; if it is not ready within 900 s, {UNIT} is started again" in said.out
    assert f"3. once {NAME} is ready, {UNIT} is disabled" in said.out
    assert "context = 8192" in said.out
    assert "--write does it" in said.err
    assert units.did() == []
    document = json.loads(call("import", "--takeover", UNIT, "--json").out)
    assert (document["model"], document["done"], len(document["would"])) == (NAME, False, 3)


def test_ours_takes_its_place(call: Call, units: Units, daemon: fake.Script, paths: Any) -> None:
    units.write(UNIT, TEXT)
    answers(daemon, view("loading"), view("warming"), view("ready"))
    said = call("import", "--takeover", UNIT, "--write")
    assert said.code == 0, said.err
    assert f"{NAME} is ready, in the place of {UNIT}" in said.out
    assert units.did() == [f"stop {UNIT}", f"disable {UNIT}"]
    assert (units.read(UNIT)["active"], units.read(UNIT)["enabled"]) == (False, "disabled")
    assert wanted(daemon) == ["running"]
    assert (paths.models_d / f"{NAME}.toml").exists()


def test_what_is_not_ready_in_time_gives_way_to_the_unit(call: Call, units: Units, daemon: fake.Script) -> None:
    units.write(UNIT, TEXT)
    answers(daemon, view("loading"), view("loading"), view("stopped"))
    said = call("import", "--takeover", UNIT, "--write", "--within", "0.1")
    assert said.code == 5, said.err
    assert units.did() == [f"stop {UNIT}", f"start {UNIT}"]
    assert wanted(daemon) == ["running", "stopped"]
    assert f"{UNIT} runs again" in said.err
    assert f"outrider why {NAME}" in said.err
    assert units.read(UNIT)["enabled"] == "enabled"


def test_what_fails_for_good_is_not_waited_for(call: Call, units: Units, daemon: fake.Script) -> None:
    units.write(UNIT, TEXT)
    why = {"code": "weights_missing", "text": "its weights are not here", "hint": None}
    again = view("failed", reason={**why, "text": "a crash"}, next_attempt_s=1.0)
    answers(daemon, again, view("failed", reason=why), view("stopped"))
    said = call("import", "--takeover", UNIT, "--write", "--json")
    document = json.loads(said.out)
    assert (said.code, document["done"], document["reason"], document["unit_back"]) == (1, False, "ours_failed", True)
    assert document["said"] == "its weights are not here"
    assert units.did() == [f"stop {UNIT}", f"start {UNIT}"]


def test_a_unit_that_does_not_stop_is_left_running(call: Call, units: Units, daemon: fake.Script) -> None:
    units.write(UNIT, TEXT, fails=["stop"])
    answers(daemon, view("stopped"))
    said = call("import", "--takeover", UNIT, "--write")
    assert said.code == 1
    assert "Access denied" in said.err
    assert units.did() == [f"stop {UNIT}", f"start {UNIT}"]
    assert wanted(daemon) == [], "ours was never asked for"
    assert units.read(UNIT)["active"]


def test_it_is_said_loudly_when_the_unit_does_not_come_back(call: Call, units: Units, daemon: fake.Script) -> None:
    units.write(UNIT, TEXT, fails=["start"])
    answers(daemon, view("failed"), view("stopped"))
    said = call("import", "--takeover", UNIT, "--write")
    assert said.code == 1
    assert f"{UNIT} DOES NOT RUN: `systemctl status {UNIT}`" in said.err


def test_ctrl_c_leads_back(call: Call, units: Units, daemon: fake.Script, monkeypatch: pytest.MonkeyPatch) -> None:
    units.write(UNIT, TEXT)
    answers(daemon, view("loading"), view("stopped"))

    def interrupted(_: float = 0.0) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("api.cli.processes.pause", interrupted)
    said = call("import", "--takeover", UNIT, "--write")
    assert said.code == 1
    assert "(interrupted: it was interrupted)" in said.err
    assert units.did() == [f"stop {UNIT}", f"start {UNIT}"]


def test_without_a_daemon_nothing_is_touched(call: Call, units: Units, paths: Any) -> None:
    units.write(UNIT, TEXT)
    assert call("import", "--takeover", UNIT, "--write").code == 6
    assert units.did() == []
    assert not paths.models_d.exists()


def test_a_disable_that_fails_undoes_nothing(call: Call, units: Units, daemon: fake.Script) -> None:
    units.write(UNIT, TEXT, fails=["disable"])
    answers(daemon, view("ready"))
    assert call("import", "--takeover", UNIT, "--write").code == 0
    assert units.did() == [f"stop {UNIT}", f"disable {UNIT}"]


def test_what_did_not_run_is_neither_stopped_nor_started(call: Call, units: Units, daemon: fake.Script) -> None:
    units.write(UNIT, TEXT, active=False)
    answers(daemon, view("failed"), view("stopped"))
    said = call("import", "--takeover", UNIT, "--write")
    assert said.code == 1
    assert units.did() == []
    assert f"{UNIT} is as it was" in said.err


def test_a_quadlet_is_read_from_its_own_file_and_cannot_be_disabled(
    call: Call, units: Units, daemon: fake.Script, tmp_path: Path
) -> None:
    source = tmp_path / "qwen.container"
    source.write_text(f"[Container]\nImage=docker.io/vllm/vllm-openai:v0.11\nExec={LINE.partition('serve ')[2]}\n")
    units.write(UNIT, "[Service]\nExecStart=/usr/bin/podman run whatever", enabled="generated", source=str(source))
    answers(daemon, view("ready"))
    said = call("import", "--takeover", UNIT, "--write")
    assert said.code == 0, said.err
    assert f"{source} stays: remove it" in said.out
    assert units.did() == [f"stop {UNIT}"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[Service]\nExecStart=/usr/bin/nginx -g 'daemon off;'", "is no model that could be run here"),
        ("[Service]\nExecStart=/opt/outrider/bin/outrider daemon", "is no model that could be run here"),
    ],
)
def test_other_programs_are_left_alone(call: Call, units: Units, text: str, words: str) -> None:
    units.write(UNIT, text)
    said = call("import", "--takeover", UNIT, "--write")
    assert (said.code, units.did()) == (4, [])
    assert words in said.err


def test_bad_calls(call: Call, units: Units) -> None:
    assert call("import", "--takeover", "nosuch.service").code == 3
    units.write(UNIT, TEXT)
    assert call("import", "--takeover", UNIT, "some.file").code == 2


def test_nothing_is_touched_where_it_does_not_fit(
    call: Call, units: Units, daemon: fake.Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"fits": False, "code": "too_big", "text": "it needs 60 GiB", "evidence": None}
    monkeypatch.setattr("api.cli.importcommand.planned_here", lambda *_: said)
    units.write(UNIT, TEXT)
    answers(daemon, view("ready"))
    found = call("import", "--takeover", UNIT, "--write")
    assert (found.code, units.did()) == (4, [])
    assert "it needs 60 GiB" in found.out
    assert wanted(daemon) == []
