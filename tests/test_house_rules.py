"""The rules for tests are rules."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pytest

from tests import house_rules
from tests.house_rules import record_fault, skip_fault

TODAY = dt.date(2026, 12, 1)


@pytest.mark.parametrize(
    ("reason", "good"),
    [
        ("no GPU here until 2027-01-31", True),
        ("no GPU here until 2026-12-01", True),
        ("no GPU here until 2026-11-30", False),
        ("no GPU here", False),
        ("", False),
    ],
)
def test_a_skip_needs_a_reason_and_an_expiry(reason: str, good: bool) -> None:
    assert (skip_fault(reason, TODAY) is None) is good


def pytest_of_its_own(folder: Path, tests: str, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text('pytest_plugins = ("tests.house_rules",)\n')
    (folder / "test_x.py").write_text(tests)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ".", *words, str(folder)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(house_rules.ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_bad_skip_fails_the_run(tmp_path: Path) -> None:
    tests = "import pytest\n\n\n@pytest.mark.skip(reason='later')\ndef test_a() -> None: ...\n"
    run = pytest_of_its_own(tmp_path, tests)
    assert run.returncode == 1, run.stdout
    assert "a skip needs a reason and an expiry" in run.stdout


def test_what_failed_can_be_run_again_and_no_more(tmp_path: Path) -> None:
    tests = """
def test_good(): ...
def test_mended(): assert {mended}
def test_bad(): assert False
"""
    file = tmp_path / "record.json"
    assert pytest_of_its_own(tmp_path, tests.format(mended=False), "--record", str(file)).returncode == 1
    seen = json.loads(file.read_text())
    assert (seen["counts"], seen["failed"]) == (
        {"failed": 2, "passed": 1},
        ["test_x.py::test_bad", "test_x.py::test_mended"],
    )
    run = pytest_of_its_own(tmp_path, tests.format(mended=True), "--again", str(file))
    assert "1 failed, 1 passed, 1 deselected" in run.stdout
    seen = json.loads(file.read_text())
    assert seen["again"] == {"test_x.py::test_mended": house_rules.git("rev-parse", "HEAD")}
    assert house_rules.still_failing(seen) == {"test_x.py::test_bad"}


def test_an_area_that_takes_too_long_is_told(pytestconfig: pytest.Config) -> None:
    """What workers do side by side counts once."""
    workers = max(1, int(getattr(pytestconfig.option, "numprocesses", None) or 1))
    may = house_rules.BUDGETS[house_rules.CORE]
    tally = house_rules.Tally(pytestconfig)
    tally.seconds[house_rules.CORE] = 60 * workers * may
    assert tally.over() == {}
    tally.seconds[house_rules.CORE] += 6 * workers
    took, limit = tally.over()[house_rules.CORE]
    assert (round(took - may, 6), limit) == (0.1, may)


@pytest.mark.parametrize(
    ("place", "marks", "area"),
    [
        ("tests/planner/test_x.py", {}, house_rules.PLANNING),
        ("tests/planner/test_x.py", {"slow": 1}, house_rules.SLOW),
        ("tests/doctor/test_x.py", {}, house_rules.FIRST_HOUR),
        ("tests/test_x.py", {}, house_rules.CORE),
    ],
)
def test_slow_tests_are_counted_apart(
    pytestconfig: pytest.Config, place: str, marks: dict[str, Literal[1]], area: str
) -> None:
    tally = house_rules.Tally(pytestconfig)
    report = pytest.TestReport(
        nodeid=f"{place}::test_a", location=(place, 1, "test_a"), keywords=marks, outcome="passed", longrepr=None,
        when="call", duration=7200.0,
    )  # fmt: skip
    tally.pytest_runtest_logreport(report)
    assert dict(tally.seconds) == {area: 7200.0}
    assert set(tally.over()) == {area} - {house_rules.SLOW}


def record(tmp_path: Path, commit: str, *, names: Sequence[str] = (), again: Sequence[str] = (), **counts: int) -> Path:
    file = tmp_path / "record.json"
    seen = {"commit": commit, "date": "2026-11-29", "counts": counts}
    file.write_text(json.dumps({**seen, "failed": list(names), "again": dict.fromkeys(again, commit)}))
    return file


def test_a_record_of_all_tests_must_be_fresh_and_good(tmp_path: Path) -> None:
    head = house_rules.git("rev-parse", "HEAD")
    assert record_fault(record(tmp_path, head, passed=3)) is None
    assert "did not pass" in str(record_fault(record(tmp_path, head, passed=3, failed=1)))
    assert "did not pass" in str(record_fault(record(tmp_path, head)))
    assert "mend ['b']" in str(record_fault(record(tmp_path, head, passed=3, failed=2, names="ab", again="a")))
    assert record_fault(record(tmp_path, head, passed=3, failed=2, names="ab", again="ab")) is None
    many = "abcdef"[: house_rules.FEW + 1]
    assert "did not pass" in str(record_fault(record(tmp_path, head, passed=3, failed=6, names=many, again=many)))
    assert "no record" in str(record_fault(record(tmp_path, "0" * 40, passed=3)))
    assert "no record" in str(record_fault(tmp_path / "absent.json"))
    commits = house_rules.git("rev-list", "HEAD").split()
    if len(commits) > house_rules.STALE + 1:
        old = commits[house_rules.STALE + 1]
        assert f"{house_rules.STALE + 1} commits ago" in str(record_fault(record(tmp_path, old, passed=3)))
