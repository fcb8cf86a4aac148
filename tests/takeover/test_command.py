"""`outrider import --takeover UNIT`: shown, done, and taken back. The daemon is a script here, for its bad moments;
`test_real` has a real one with a real engine."""

from __future__ import annotations

import json
import os
import signal
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


def away(_: fake.Asked) -> fake.Answer:
    """The daemon dies while it is asked."""
    raise ConnectionResetError


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
    assert (document["model"], document["done"], len(document["would"])) == (NAME, False, 4)


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
    said = call("import", "--takeover", UNIT, "--write")
    assert said.code == 0
    assert units.did() == [f"stop {UNIT}", f"disable {UNIT}"]
    assert f"{UNIT} IS STILL ENABLED" in said.err
    assert "Access denied" in said.err


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


# what goes wrong on the way


def test_a_unit_that_something_starts_again_is_left_to_it(call: Call, units: Units, daemon: fake.Script) -> None:
    units.write(UNIT, TEXT, returns=True)
    answers(daemon, view("ready"))
    said = call("import", "--takeover", UNIT, "--write")
    assert said.code == 1
    assert "was stopped, and runs again: something starts it" in said.err
    assert wanted(daemon) == [], "never both at once"
    assert units.read(UNIT)["active"]


def test_a_unit_that_comes_back_while_ours_loads_keeps_its_place(call: Call, units: Units, daemon: fake.Script) -> None:
    units.write(UNIT, TEXT)

    def ready_beside_it(_: fake.Asked) -> fake.Answer:
        units.write(UNIT, TEXT)
        return fake.Answer(view("ready"))

    answers(daemon, view("loading"), ready_beside_it, view("stopped"))
    said = call("import", "--takeover", UNIT, "--write", "--json")
    document = json.loads(said.out)
    assert (said.code, document["reason"], document["unit_back"]) == (1, "unit_came_back", True)
    assert wanted(daemon) == ["running", "stopped"]
    assert units.did() == [f"stop {UNIT}"], "it is neither started twice nor disabled"


def test_what_would_start_it_again_is_to_be_stopped_first(call: Call, units: Units, daemon: fake.Script) -> None:
    units.write("qwen.socket", "", active=True)
    units.write("qwen.timer", "", active=False)
    units.write(UNIT, TEXT, triggers="qwen.socket qwen.timer")
    answers(daemon, view("ready"))
    shown = call("import", "--takeover", UNIT)
    assert shown.code == 0
    assert "qwen.socket would start it again: stop that first" in shown.out
    said = call("import", "--takeover", UNIT, "--write")
    assert (said.code, units.did()) == (4, [])
    assert "systemctl stop qwen.socket" in said.err


def test_what_was_stopped_with_it_is_started_with_it(call: Call, units: Units, daemon: fake.Script) -> None:
    units.write("webui.service", "")
    units.write("idle.service", "", active=False)
    units.write(UNIT, TEXT, needing="webui.service idle.service")
    answers(daemon, view("failed"), view("stopped"))
    assert "and with it what needs it: webui.service" in call("import", "--takeover", UNIT).out
    assert call("import", "--takeover", UNIT, "--write").code == 1
    assert units.did() == [f"stop {UNIT}", f"start {UNIT}", "start webui.service"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"load": "masked"}, "is masked: it could not be started again"),
        ({"load": "bad-setting"}, "it could not be started again"),
        ({"state": "deactivating"}, "is being stopped just now"),
    ],
)
def test_what_could_not_be_started_again_is_not_stopped(
    call: Call, units: Units, daemon: fake.Script, more: dict[str, Any], words: str
) -> None:
    units.write(UNIT, TEXT, **more)
    answers(daemon, view("ready"))
    said = call("import", "--takeover", UNIT, "--write")
    assert (said.code, units.did()) == (4, [])
    assert words in said.err


def test_names_that_are_no_unit(call: Call, units: Units) -> None:
    units.write(UNIT, TEXT)
    assert "no name of one unit" in call("import", "--takeover", "qwen*").err
    assert "is a template" in call("import", "--takeover", "vllm@.service").err
    assert call("import", "--takeover", UNIT, "--within", "0").code == 2
    assert call("import", "--takeover", UNIT, "--within", "nan").code == 2


def test_a_template_is_read_with_the_name_of_its_instance(call: Call, units: Units) -> None:
    text = "[Service]\nExecStart=/usr/bin/vllm serve Qwen/%i --max-model-len 8192 --port 8000"
    units.write("vllm@Qwen3.8-27B.service", text)
    said = call("import", "--takeover", "vllm@Qwen3.8-27B.service", "--json")
    assert json.loads(said.out)["model"] == NAME


def test_a_unit_of_the_system_and_a_user(call: Call, units: Units, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    units.write(UNIT, TEXT, system=True)
    said = call("import", "--takeover", UNIT)
    assert said.code == 4
    assert f"{UNIT} is a unit of the system, not of this user" in said.err
    units.write(UNIT, TEXT)
    assert call("import", "--takeover", UNIT).code == 0
    (units.folder / "no-bus").touch()
    said = call("import", "--takeover", UNIT)
    assert said.code == 1, "no word of systemd is no word that there is no such unit"
    assert "Failed to connect to bus" in said.err
    assert "hint: this machine is not run by systemd, or its bus is down" in said.err


@pytest.mark.parametrize("verb", ["stop", "start", "disable", "show"])
def test_a_systemctl_that_hangs(
    call: Call, units: Units, daemon: fake.Script, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """Each call has its deadline; the unit comes back whatever hangs, and one that took effect counts."""
    monkeypatch.setattr("orchestrator.takeover.units.ACT", 1.0)
    monkeypatch.setattr("orchestrator.takeover.units.ASK", 1.0)
    units.write(UNIT, TEXT, hangs=[verb])
    answers(daemon, view("ready") if verb == "disable" else view("failed"), view("stopped"))
    said = call("import", "--takeover", UNIT, "--write")
    did = {
        "stop": (1, [f"stop {UNIT}", f"start {UNIT}"], "runs again"),
        "start": (1, [f"stop {UNIT}", f"start {UNIT}"], "runs again"),
        "disable": (0, [f"stop {UNIT}", f"disable {UNIT}"], "IS STILL ENABLED"),
        "show": (1, [], "timed out"),
    }[verb]
    assert (said.code, units.did()) == did[:2], said.err
    assert did[2] in said.err


def test_a_daemon_that_dies_on_the_way_has_its_time_to_come_back(call: Call, units: Units, daemon: fake.Script) -> None:
    """What it had started runs on without it, so the unit waits until a new daemon has stopped that."""
    units.write(UNIT, TEXT)
    answers(daemon, view("failed"), away, away, view("stopping"), view("stopped"))
    said = call("import", "--takeover", UNIT, "--write")
    assert said.code == 1
    assert len(daemon.asked_for("GET", f"/deployments/{NAME}")) >= 5
    assert units.did() == [f"stop {UNIT}", f"start {UNIT}"]
    assert "BESIDE" not in said.err


def test_a_daemon_that_stays_away_is_told_of(
    call: Call, units: Units, daemon: fake.Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.cli.takeover.STOPPED", 0.3)
    units.write(UNIT, TEXT)
    answers(daemon, view("failed"), away)
    said = call("import", "--takeover", UNIT, "--write")
    assert said.code == 1
    assert units.read(UNIT)["active"]
    assert f"{NAME} MAY STILL RUN BESIDE IT: `outrider stop {NAME}` once the daemon answers" in said.err


def test_a_definition_that_the_daemon_does_not_know_is_taken_up_before_anything_stops(
    call: Call, units: Units, daemon: fake.Script
) -> None:
    """A first try wrote it, and the daemon could not take it up."""
    units.write(UNIT, TEXT)
    answers(daemon, view("ready"))
    daemon.on("POST", "/reload", fake.problem(400, "config_invalid", "another file is bad"), {"applied": True})
    daemon.on("GET", "/models", [])
    assert "another file is bad" in call("import", "--takeover", UNIT, "--write").err
    assert units.did() == []
    assert call("import", "--takeover", UNIT, "--write").code == 0
    assert len(daemon.asked_for("POST", "/reload")) == 2
    daemon.on("GET", "/models", [{"name": NAME}])
    units.write(UNIT, TEXT)
    said = call("import", "--takeover", UNIT, "--write")
    assert said.code == 0
    assert f"{NAME} is defined already" in said.out
    assert len(daemon.asked_for("POST", "/reload")) == 2


def test_weights_that_are_not_here_keep_the_unit(
    call: Call, units: Units, daemon: fake.Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"fits": True, "code": None, "text": "vllm with none", "evidence": "untried", "weights_here": False}
    monkeypatch.setattr("api.cli.importcommand.planned_here", lambda *_: said)
    units.write(UNIT, TEXT)
    answers(daemon, view("ready"))
    found = call("import", "--takeover", UNIT, "--write")
    assert (found.code, units.did()) == (4, [])
    assert f"the weights of {NAME} are not here" in found.err


def test_ours_waits_for_the_memory_of_the_unit(call: Call, units: Units, daemon: fake.Script) -> None:
    units.write(UNIT, TEXT)
    gib = 1 << 30
    readings = [
        [{"sequence": n, "accelerators": [{"pci": "0000:01:00.0", "memory_free": free * gib}]}]
        for n, free in enumerate([2, 2, 2, 10, 20, 22, 22, 22, 22])
    ]
    daemon.on("GET", "/telemetry", *readings)
    answers(daemon, view("ready"))
    assert call("import", "--takeover", UNIT, "--write").code == 0
    order = [(a.method, a.path) for a in daemon.asked]
    assert order[: order.index(("PUT", f"/deployments/{NAME}/desired"))].count(("GET", "/telemetry")) == 8


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_terminal_that_closes_leads_back(
    call: Call, units: Units, daemon: fake.Script, number: signal.Signals
) -> None:
    units.write(UNIT, TEXT)

    def killed(_: fake.Asked) -> fake.Answer:
        os.kill(os.getpid(), number)
        return fake.Answer(view("loading"))

    answers(daemon, killed, view("stopped"))
    before = signal.getsignal(number)
    said = call("import", "--takeover", UNIT, "--write")
    assert said.code == 1
    assert "(interrupted: it was interrupted)" in said.err
    assert units.did() == [f"stop {UNIT}", f"start {UNIT}"]
    assert signal.getsignal(number) is before


def test_no_secret_of_the_unit_is_shown_or_written(call: Call, units: Units, daemon: fake.Script, paths: Any) -> None:
    secrets = ("hf_PlantedInTheEnvironment", "sk-PlantedAsAnArgument1", "PlantedBearerToken77", "Pl4ntedLogin")
    more = (
        f"Environment=HF_TOKEN={secrets[0]} OTHER=1\n"
        f'ExecStop=/usr/bin/curl -H "Authorization: Bearer {secrets[2]}" https://grace:{secrets[3]}@example.org/bye\n'
    )
    text = TEXT.replace("--port 8000", f"--port 8000 --api-key {secrets[1]}").replace("Restart=always\n", more)
    units.write(UNIT, text)
    answers(daemon, view("ready"))
    texts = []
    for words in ((), ("--json",), ("--write",)):
        said = call("import", "--takeover", UNIT, *words)
        assert said.code == 0, said.err
        texts.append(said.out + said.err)
    texts.append((paths.models_d / f"{NAME}.toml").read_text())
    texts += [json.dumps(a.body) for a in daemon.asked]
    assert [secret for secret in secrets if any(secret in text for text in texts)] == []
