"""ps, status, events, logs, models, reload: what the daemon shows, for people and for programs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api.cli.output import note, print_error, print_table, say, ticker
from api.cli.views import version_words
from orchestrator.errors import NotFound
from tests.cli import fake
from tests.cli.conftest import Call

HEALTH = {
    "ok": True,
    "version": "0.1.0",
    "host": "here",
    "boot_id": "b",
    "owner": "o",
    "uptime_s": 7384.0,
    "podman": True,
    "gateway": None,
    "loops": {},
    "problems": [{"code": "clock", "text": "the clock is off", "hint": "chrony"}],
}
GPU = {
    "vendor": "nvidia",
    "name": "RTX 3090",
    "arch": "sm_86",
    "pci": "0000:01:00.0",
    "memory_total": 24 * 2**30,
    "memory_free": None,
    "unified": False,
}
HOST: dict[str, Any] = {
    "schema": 1,
    "host": "here",
    "os": "Debian 12",
    "kernel": None,
    "cpu": {"model": "EPYC", "arch": "x86_64", "threads": 2, "flags": []},
    "memory": {"total": 2**33, "available": 2**32},
    "accelerators": [GPU],
    "problems": [{"code": "no_device", "vendor": "amd", "detail": "no AMD device", "hint": None}],
}


def test_ps_is_a_table(call: Call, daemon: fake.Script) -> None:
    why = {"code": "crashed", "text": "exit code 139", "hint": None}
    daemon.on(
        "GET",
        "/deployments",
        [fake.view(drifted=True, in_flight=2), fake.view("failed", "other", reason=why, next_attempt_s=90.0)],
    )
    said = call("ps")
    assert said.code == 0
    heading, first, second = said.out.splitlines()
    assert heading.split()[:3] == ["MODEL", "STATE", "DESIRED"]
    assert first.split()[:8] == ["smollm2", "ready", "(drifted)", "running", "3", "llama.cpp", "ngram", "x8"]
    assert "exit code 139 (tried again in 1 min 30 s)" in second


def test_ps_says_on_which_rung_something_runs_and_why(call: Call, daemon: fake.Script) -> None:
    left = [{"text": "the plan as it is", "code": "drafter_overrun", "failures": 3, "at": 1700000000.0}]
    rung = {"change": "fewer_slots", "text": "2 slots instead of 4", "method": "dflash", "since": 1700000000.0}
    daemon.on("GET", "/deployments", [fake.view(rung={**rung, "left": left, "up_in_s": 80000.0})])
    assert "on a lower rung: 2 slots instead of 4 (3 x drafter_overrun before)" in call("ps").out


def test_ps_json_is_the_apis_list(call: Call, daemon: fake.Script) -> None:
    daemon.on("GET", "/deployments", [fake.view(), fake.view("stopped", "other")])
    said = call("ps", "--json")
    assert said.document == [fake.view(), fake.view("stopped", "other")]
    assert said.err == ""


def test_nothing_deployed_says_what_to_do_beside_the_answer(call: Call, daemon: fake.Script) -> None:
    daemon.on("GET", "/deployments", [])
    said = call("ps")
    assert (said.code, said.out) == (0, "")
    assert "outrider start MODEL" in said.err
    assert call("ps", "--json").document == []


def test_what_the_daemon_says_is_no_markup(call: Call, daemon: fake.Script) -> None:
    why = {"code": "x", "text": "[red]no[/red] [nonsense", "hint": None}
    daemon.on("GET", "/deployments", [fake.view("failed", reason=why)])
    assert "[red]no[/red] [nonsense" in call("ps").out


def test_status(call: Call, daemon: fake.Script) -> None:
    daemon.on("GET", "/health", HEALTH)
    daemon.on("GET", "/host", HOST)
    daemon.on("GET", "/deployments", [fake.view()])
    pauses = [{"deployment": d, "author": "cli:grace", "at": 1700000000.0} for d in (None, "smollm2")]
    daemon.on("GET", "/pauses", pauses)
    said = call("status")
    assert said.code == 0
    shown = [line for line in said.out.splitlines() if line.startswith("paused")]
    assert [line.partition(", by cli:grace since ")[0] for line in shown] == [
        "paused    everything",
        "paused    smollm2",
    ]
    assert [line.rpartition(": ")[2] for line in shown] == [
        "`outrider resume` ends it",
        "`outrider resume smollm2` ends it",
    ]
    daemon.on("GET", "/pauses", [])
    said = call("status")
    lines = said.out.splitlines()
    assert lines[0] == "daemon    ok, version 0.1.0, up 2 h 3 min"
    assert lines[1:3] == ["podman    ok", "gateway   not heard of yet"]
    assert "gpu       RTX 3090 (sm_86, 0000:01:00.0), 24.0 GiB own memory, - free" in lines
    assert "problem   [clock] the clock is off" in lines
    assert "          hint: chrony" in lines
    assert "problem   [no_device] no AMD device" in lines
    document = call("status", "--json").document
    assert document == {"health": HEALTH, "host": HOST, "deployments": [fake.view()], "pauses": []}


def test_models(call: Call, daemon: fake.Script) -> None:
    daemon.on("GET", "/models", [fake.model(), fake.model("gone", files_ok=False, problem="no file")])
    said = call("models")
    assert "102.8 MB" in said.out
    assert "no file" in said.out
    assert call("models", "--json").document[1]["name"] == "gone"


def test_events_come_page_by_page(call: Call, daemon: fake.Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.cli.views.PAGE", 2)
    daemon.on("GET", "/events", [fake.event(1, "a"), fake.event(2, "b")], [fake.event(3, "c")])
    said = call("events")
    assert [line.split()[-1] for line in said.out.splitlines()] == ["a", "b", "c"]
    assert [a.query for a in daemon.asked] == ["since=0&limit=2", "since=2&limit=2"]


def test_events_of_one_deployment_after_one(call: Call, daemon: fake.Script) -> None:
    daemon.on("GET", "/events", [fake.event(8, "a")])
    assert call("events", "--since", "7", "--deployment", "m", "--json").document == [fake.event(8, "a")]
    assert daemon.asked[0].query == "since=7&deployment=m&limit=5000"


def test_following_prints_one_document_a_line(call: Call, daemon: fake.Script) -> None:
    daemon.on("GET", "/events", fake.events(("event", fake.event(1, "a")), ("event", fake.event(2, "b"))))
    said = call("events", "-f", "--json")
    assert said.code == 0
    assert [json.loads(line)["text"] for line in said.out.splitlines()] == ["a", "b"]
    assert daemon.asked[0].query == "follow=true"


def test_a_stream_that_breaks_with_an_error(call: Call, daemon: fake.Script) -> None:
    error = {"code": "podman_unreachable", "detail": "Podman went away", "hint": "wait"}
    daemon.on("GET", "/deployments/m/logs", fake.events(("log", {"stream": "stdout", "text": "x"}), ("error", error)))
    said = call("logs", "m", "-f")
    assert said.code == 1
    assert said.out == "x\n"
    assert said.err == "error[podman_unreachable]: Podman went away\nhint: wait\n"


def test_logs(call: Call, daemon: fake.Script) -> None:
    lines = [{"stream": "stdout", "text": "one"}, {"stream": "stderr", "text": "[two]"}]
    daemon.on("GET", "/deployments/m/logs", lines)
    assert call("logs", "m", "--tail", "2").out == "one\n[two]\n"
    assert daemon.asked[0].query == "tail=2"
    assert call("logs", "m", "--json").document == lines


def test_reload_shows_what_it_changes(call: Call, daemon: fake.Script) -> None:
    change = {"subject": "model m", "kind": "changed", "detail": "context: 1 -> 2", "action": "apply"}
    daemon.on("POST", "/reload", {"applied": False, "changes": [change]})
    said = call("reload", "--dry-run")
    assert daemon.asked[0].body == {"dry_run": True}
    assert "context: 1 -> 2  makes a new plan" in said.out
    assert "not applied (dry run)" in said.out
    daemon.on("POST", "/reload", {"applied": True, "changes": []})
    assert "nothing changed" in call("reload").err


def test_the_versions_that_gpus_run_on_are_said_in_short() -> None:
    gpu = {"vendor": "amd", "driver": "6.16.13", "cuda": None, "details": {"mes_version": 0x83}}
    platform = {
        "ttm_pages_limit": 29360128,
        "ttm_module": "amdttm",
        "rocm": "7.2.0",
        "linux_firmware": None,
        "bios_version": "GTR9P108",
        "bios_date": "10/02/2026",
    }
    assert version_words({"kernel": "7.1.0", "accelerators": [gpu, gpu], "platform": platform}) == [
        "amd driver 6.16.13",
        "MES firmware 0x83",
        "ROCm 7.2.0",
        "GPU memory ceiling 112.0 GiB (amdttm)",
        "BIOS GTR9P108 10/02/2026",
    ]
    assert version_words({"accelerators": []}) == []


def test_a_stranger_s_words_drive_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    """A hub, a registry or an engine may have said them."""
    evil = "a\x1b]0;x\x07\x1b[2J\rb\x9b1m\u00e9\ttab"
    say(evil)
    note(evil)
    print_table(("TEXT",), [(evil,)], empty="")
    with ticker(evil) as shown:
        shown.update(evil)
        shown.done(evil)
    print_error(NotFound(evil, hint=evil), as_json=False)
    out, err = capfd.readouterr()
    for text in (out, err):
        assert "\u00e9" in text
        assert not [c for c in text if c not in "\n\t" and (ord(c) < 32 or 127 <= ord(c) < 160)]
