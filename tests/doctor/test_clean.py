"""Machines with nothing wrong: nothing is found, and everything was looked at."""

from __future__ import annotations

import pytest

from orchestrator.doctor import rules
from tests.doctor.conftest import Make


@pytest.mark.parametrize("kind", ["nvidia", "strix", "cpu"])
def test_nothing_is_wrong(make: Make, kind: str) -> None:
    box = make(kind)
    box.facts = None  # probed by the collector itself
    report = box.report()
    assert report.findings == ()
    assert report.not_checked == ()
    assert report.checked == tuple(rule.code for rule in rules.load())
    assert report.healthy
