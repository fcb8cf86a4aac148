"""The rule table holds: its form in the quick suite, and against the wheels themselves in the slow one."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from orchestrator import runtimes
from tests.coverage.elements import elements
from tests.coverage.evidence import Rule, rules
from tests.coverage.wheels import read, wheel

TABLE = rules()


def test_ids_are_unique_and_wheels_known() -> None:
    ids = [rule.id for rule in TABLE.rule]
    assert len(ids) == len(set(ids))
    assert {rule.wheel for rule in TABLE.rule} <= TABLE.wheels.keys()
    assert all(f"-{known.version}" in known.file for known in TABLE.wheels.values())


def test_only_what_accepts_stands_for_elements() -> None:
    assert all(rule.says == "accepted" or not rule.covers for rule in TABLE.rule)
    for rule in TABLE.rule:
        for text in rule.covers:
            assert len(elements(text.split())) == 1, (rule.id, text)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("rule", TABLE.rule, ids=lambda rule: rule.id)
def test_the_cited_lines_still_say_so(rule: Rule) -> None:
    lines = _source(rule.wheel, rule.file)
    place = "\n".join(lines[rule.line - 1 : rule.line - 1 + rule.span])
    lacking = [name for name in rule.names if name not in place]
    assert not lacking, f"{rule.file}:{rule.line} no longer says {lacking}:\n{place}"


@cache
def _source(key: str, file: str) -> list[str]:
    return read(wheel(key), file).decode().splitlines()


CITED = re.compile(r"\b((?:[a-z0-9_]+/)+[a-z0-9_]+\.py):(\d+)")
ADAPTERS = {"vllm": ("vllm-0.33.0", "vllm/"), "sglang": ("sglang-0.5.23", "sglang/")}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ADAPTERS)
def test_the_lines_that_an_adapter_cites_are_there(name: str) -> None:
    key, package = ADAPTERS[name]
    for file in sorted(Path(runtimes.__file__).parent.glob(f"{name}*.py")):
        for cited, line in CITED.findall(file.read_text()):
            lines = _source(key, package + cited)
            assert len(lines) >= int(line), (file.name, cited, line)
            assert lines[int(line) - 1].strip(), (file.name, cited, line)
