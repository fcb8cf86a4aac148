"""`outrider doctor`: what it prints, its document, its exit codes. On this machine, whatever is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.doctor import rules
from tests.doctor.conftest import Outrider


def test_on_this_machine(tmp_path: Path, outrider: Outrider) -> None:
    """One document, every rule asked or said not to be, and nothing left behind."""
    said = outrider("doctor", "--json")
    document = json.loads(said.out)
    problems = [finding for finding in document["findings"] if finding["severity"] == "problem"]
    assert said.code == (1 if problems else 0)
    assert set(document) == {"findings", "checked", "not_checked"}
    asked = {*document["checked"], *(skipped["code"] for skipped in document["not_checked"])}
    assert asked == {rule.code for rule in rules.load()}
    for finding in document["findings"]:
        assert set(finding) == {"code", "severity", "finding", "evidence", "fix", "source"}
        assert finding["fix"]
    assert not (tmp_path / "state").exists()


def test_one_rule_for_a_person(tmp_path: Path, outrider: Outrider, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake commands of our own: Podman is too old here."""
    (tmp_path / "podman").write_text('#!/bin/sh\n[ "$1" = --version ] && echo "podman version 3.0.1" || echo "{}"\n')
    (tmp_path / "podman").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    words = ("doctor", "--rule", "podman_old", "--rule", "storage_driver")
    said = outrider(*words)
    assert said.code == 1
    lines = said.out.splitlines()
    assert lines[0] == "problem [podman_old] Podman 3.0.1 is too old: 4.3 is the oldest that works"
    assert "  version: 3.0.1" in lines
    assert any(line.startswith("  $ ") and line.endswith(" podman") for line in lines)
    assert lines[-1] == "2 rules: 1 problem"


@pytest.mark.parametrize("words", [("doctor", "--list"), ("doctor", "--list", "--rule", "gpu_lost")])
def test_the_list(outrider: Outrider, words: tuple[str, ...]) -> None:
    said = outrider(*words)
    assert said.code == 0
    wanted = ["gpu_lost"] if len(words) > 2 else [rule.code for rule in rules.load()]
    assert [line.split()[0] for line in said.out.splitlines()] == wanted
    document = json.loads(outrider(*words, "--json").out)
    assert [rule["code"] for rule in document] == wanted


def test_a_rule_that_is_none(outrider: Outrider) -> None:
    said = outrider("doctor", "--rule", "gpu_lots")
    assert said.code == 3
    assert said.err == "error[not_found]: there is no rule 'gpu_lots'\nhint: `outrider doctor --list` names them\n"


def test_a_broken_configuration_is_said_and_the_rest_is_looked_at(tmp_path: Path, outrider: Outrider) -> None:
    (tmp_path / "state/config").mkdir(parents=True)
    (tmp_path / "state/config/outrider.toml").write_text("[gatway]\n")
    said = outrider("doctor", "--rule", "firewall_closed", "--rule", "overcommit", "--json")
    document = json.loads(said.out)
    assert document["checked"] == ["overcommit"]
    (skipped,) = document["not_checked"]
    assert skipped["code"] == "firewall_closed"
    assert "the configuration is not readable" in skipped["why"]
