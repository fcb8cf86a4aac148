"""llama.cpp is started with all that its adapter says, and the records of that are those of today's adapter."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from orchestrator.plan import Method
from tests.coverage import llama_launches, llama_record
from tests.coverage.elements import elements
from tests.coverage.evidence import Recorded, llama_rules
from tests.coverage.wheels import fetched

RECORDS = {
    file: Recorded.model_validate_json(file.read_text()) for file in (llama_record.LAUNCHED, llama_record.PARSED)
}


@pytest.mark.parametrize("old", [False, True])
def test_the_records_hold_all_that_the_adapter_says(old: bool) -> None:
    record = RECORDS[llama_record.PARSED if old else llama_record.LAUNCHED]
    held = frozenset().union(*(elements(argv) for argv in record.accepted))
    said = frozenset().union(*llama_launches.wanted(old=old).values())
    assert said <= held, f"python -m tests.coverage.llama_record: {sorted(said - held)}"


def test_a_head_in_a_file_of_its_own_drafts(test_cache: Path) -> None:
    argv = "-m /models/m -md /models/d --host /run/engine/engine.sock -c 4096 -np 2 --slots --spec-type draft-mtp"
    launch = (Method.MTP, (*argv.split(), "--spec-draft-n-max", "3"))
    assert llama_record.launch([launch], test_cache) == {}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_an_engine_answers_with_all_that_each_method_is_said_with(test_cache: Path) -> None:
    lines = llama_record.lines()
    assert {method for method, _ in lines} == set(Method)
    assert llama_record.launch(lines, test_cache) == {}


@pytest.mark.slow
def test_the_true_parser_says_what_was_recorded(test_cache: Path) -> None:
    record = RECORDS[llama_record.PARSED]
    for argv in record.accepted:
        assert llama_record.parse(argv, test_cache) is None, argv
    for rejection in record.rejected:
        assert llama_record.parse(rejection.argv, test_cache) == rejection.says


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_rules_are_what_the_source_says() -> None:
    table = llama_rules()
    for key, known in table.wheels.items():
        file = fetched(known)
        with tarfile.open(file) as archive:
            top = known.file.removesuffix(".tar.gz")
            for rule in (rule for rule in table.rule if rule.wheel == key):
                member = archive.extractfile(f"{top}/{rule.file}")
                assert member is not None, rule.file
                lines = member.read().decode().splitlines()[rule.line - 1 : rule.line - 1 + rule.span]
                assert rule.names[0] in "\n".join(lines[:3]), (rule.id, lines[:3])
                for name in rule.names:
                    assert name in "\n".join(lines), (rule.id, name)
