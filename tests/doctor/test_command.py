"""`outrider doctor`: what it prints, its document, its exit codes. On this machine, whatever is wrong with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.doctor import rules


def outrider(*words: str, state: Path, path: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **({"PATH": path} if path is not None else {})}
    command = [sys.executable, "-P", "-m", "api.cli", "--state-dir", str(state), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, env=env, check=False)


def test_on_this_machine(tmp_path: Path) -> None:
    """One document, every rule asked or said not to be, and nothing left behind."""
    said = outrider("doctor", "--json", state=tmp_path / "state")
    document = json.loads(said.stdout)
    problems = [finding for finding in document["findings"] if finding["severity"] == "problem"]
    assert said.returncode == (1 if problems else 0)
    assert set(document) == {"findings", "checked", "not_checked"}
    asked = {*document["checked"], *(skipped["code"] for skipped in document["not_checked"])}
    assert asked == {rule.code for rule in rules.load()}
    for finding in document["findings"]:
        assert set(finding) == {"code", "severity", "finding", "evidence", "fix", "source"}
        assert finding["fix"]
    assert not (tmp_path / "state").exists()


def test_one_rule_for_a_person(tmp_path: Path) -> None:
    """Fake commands of our own: Podman is too old here."""
    (tmp_path / "podman").write_text('#!/bin/sh\n[ "$1" = --version ] && echo "podman version 3.0.1" || echo "{}"\n')
    (tmp_path / "podman").chmod(0o755)
    words = ("doctor", "--rule", "podman_old", "--rule", "storage_driver")
    said = outrider(*words, state=tmp_path / "state", path=str(tmp_path))
    assert said.returncode == 1
    lines = said.stdout.splitlines()
    assert lines[0] == "problem [podman_old] Podman 3.0.1 is too old: 4.3 is the oldest that works"
    assert "  version: 3.0.1" in lines
    assert any(line.startswith("  $ ") and line.endswith(" podman") for line in lines)
    assert lines[-1] == "2 rules: 1 problem"


@pytest.mark.parametrize("words", [("doctor", "--list"), ("doctor", "--list", "--rule", "gpu_lost")])
def test_the_list(tmp_path: Path, words: tuple[str, ...]) -> None:
    said = outrider(*words, state=tmp_path)
    assert said.returncode == 0
    wanted = ["gpu_lost"] if len(words) > 2 else [rule.code for rule in rules.load()]
    assert [line.split()[0] for line in said.stdout.splitlines()] == wanted
    document = json.loads(outrider(*words, "--json", state=tmp_path).stdout)
    assert [rule["code"] for rule in document] == wanted


def test_a_rule_that_is_none(tmp_path: Path) -> None:
    said = outrider("doctor", "--rule", "gpu_lots", state=tmp_path)
    assert said.returncode == 3
    assert said.stderr == "error[not_found]: there is no rule 'gpu_lots'\nhint: `outrider doctor --list` names them\n"


def test_a_broken_configuration_is_said_and_the_rest_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "outrider.toml").write_text("[gatway]\n")
    said = outrider("doctor", "--rule", "firewall_closed", "--rule", "overcommit", "--json", state=tmp_path)
    document = json.loads(said.stdout)
    assert document["checked"] == ["overcommit"]
    (skipped,) = document["not_checked"]
    assert skipped["code"] == "firewall_closed"
    assert "the configuration is not readable" in skipped["why"]
