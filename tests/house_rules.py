"""Rules for the test suite itself, enforced by pytest.

* A skip names a reason and an expiry (`until 2027-01-31`), or it is a failure; an expired one too.
* `--budgets` fails a run whose tests took longer than their area may: the whole suite must stay
  quick enough to be run before every commit. Tests marked slow are counted apart: they are not run then.
* `--record FILE` writes what a whole run was (commit, date, counts, what failed). `python -m tests.house_rules
  FILE` refuses a record that is more than `STALE` commits old, or that had failures.
* `--again FILE` runs what failed in the record once more, when it is mended, and notes for each test that passes now at
  which commit that was. So few failures (`FEW`) do not ask for another run of everything, and stay to be read.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
CORE = "core"
FIRST_HOUR = "first hour"
PLANNING = "planning"
LIFECYCLE = "lifecycle"
SLOW = "slow"
"""Tests of that mark, of whatever area."""
BUDGETS = {CORE: 2.5, FIRST_HOUR: 1.0, PLANNING: 1.0, LIFECYCLE: 2.0}
"""Minutes of test time that an area may take without its slow tests, on two cores."""
AREAS = {
    **dict.fromkeys(("doctor", "images", "weights", "housekeeping", "install", "guard"), FIRST_HOUR),
    **dict.fromkeys(
        (
            "catalogue",
            "coverage",
            "fit",
            "golden",
            "importing",
            "measured",
            "memory_fit",
            "planner",
            "reading",
            "runtimes",
        ),
        PLANNING,
    ),
    **dict.fromkeys(
        ("canary", "demand", "endurance", "health", "history", "restarting", "stopping", "takeover", "telling"),
        LIFECYCLE,
    ),
}
"""Folder below `tests` to area, for those with a budget of their own; all else is of the core."""
STALE = 20
FEW = 5
"""Failures of a whole run, at most, that may be mended and run again by themselves."""
_EXPIRY = re.compile(r"until (\d{4}-\d{2}-\d{2})")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("house rules")
    group.addoption("--budgets", action="store_true", help="fail when an area's tests take longer than they may")
    group.addoption("--record", metavar="FILE", help="write commit, date, counts and failures of this run")
    group.addoption("--again", metavar="FILE", help="run what failed in this record, and note what passes now")


def skip_fault(reason: str, today: dt.date) -> str | None:
    """What is wrong with a skip's reason; None when it is a good one."""
    found = _EXPIRY.search(reason)
    if found is None:
        return f"a skip needs a reason and an expiry (`... until YYYY-MM-DD`), not {reason!r}"
    if dt.date.fromisoformat(found[1]) < today:
        return f"this skip has expired: {reason!r}"
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Turn a bad skip into a failure."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        fault = skip_fault(reason, dt.datetime.now(dt.UTC).date())  # noqa: TID251 - an expiry is a wall date
        if fault is not None:
            report.outcome = "failed"
            report.longrepr = fault
    return report


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--again`, what the record says failed and nothing else."""
    record = config.getoption("--again")
    if record:
        left = still_failing(json.loads(Path(record).read_text()))
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in left])
        items[:] = [item for item in items if item.nodeid in left]


class Tally:
    """What a run took and how it ended. Lives where reports arrive: in xdist's controller."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.seconds: dict[str, float] = defaultdict(float)
        self.counts: Counter[str] = Counter()
        self.failed: set[str] = set()
        self.passed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        folder = Path(report.location[0]).parts[1:2]
        area = SLOW if SLOW in report.keywords else AREAS.get(folder[0] if folder else "", CORE)
        self.seconds[area] += report.duration
        if report.when == "call" or report.outcome != "passed":
            self.counts[report.outcome] += 1
            (self.failed if report.failed else self.passed).add(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        over = self.over()
        if over and self._config.getoption("--budgets"):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        record = self._config.getoption("--record")
        if record:
            _write(Path(record), self.summary())
        again = self._config.getoption("--again")
        if again:
            seen = json.loads(Path(again).read_text())
            now = self.passed & still_failing(seen) - self.failed
            seen["again"] = {**seen.get("again", {}), **dict.fromkeys(sorted(now), git("rev-parse", "HEAD"))}
            _write(Path(again), seen)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for area, (took, may) in sorted(self.over().items()):
            terminalreporter.write_line(f"{area}: {took:.1f} of {may} minutes of test time", red=True)

    def over(self) -> dict[str, tuple[float, float]]:
        """Areas that took longer than they may: (minutes taken, minutes allowed)."""
        workers = max(1, int(getattr(self._config.option, "numprocesses", None) or 1))
        taken = {area: seconds / workers / 60 for area, seconds in self.seconds.items()}
        return {area: (taken[area], may) for area, may in BUDGETS.items() if taken.get(area, 0.0) > may}

    def summary(self) -> dict[str, object]:
        return {
            "commit": git("rev-parse", "HEAD"),
            "date": dt.datetime.now(dt.UTC).date().isoformat(),  # noqa: TID251 - for people
            "counts": dict(sorted(self.counts.items())),
            "failed": sorted(self.failed),
            "minutes": {area: round(seconds / 60, 1) for area, seconds in sorted(self.seconds.items())},
        }


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Tally(config), "outrider-tally")


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _write(record: Path, what: Mapping[str, object]) -> None:
    record.write_text(json.dumps(what, indent=2) + "\n")


def still_failing(seen: Mapping[str, Any]) -> set[str]:
    """What failed in a whole run and has not passed since."""
    return set(seen.get("failed", ())) - set(seen.get("again", ()))


def record_fault(record: Path) -> str | None:
    """Why a record of a whole run is not good enough; None when it is."""
    if git("rev-parse", "--is-shallow-repository") == "true":
        return None  # without history there is nothing to count
    try:
        seen = json.loads(record.read_text())
        behind = int(git("rev-list", "--count", f"{seen['commit']}..HEAD"))
    except (OSError, ValueError, KeyError, subprocess.CalledProcessError) as error:
        return f"{record} holds no record of a run of all tests: {error}"
    named = len(seen.get("failed", ()))
    if not seen["counts"].get("passed") or named > FEW or bool(named) != bool(seen["counts"].get("failed")):
        return f"the last run of all tests did not pass: {seen['counts']}"
    if still_failing(seen):
        return f"the last run of all tests did not pass: mend {sorted(still_failing(seen))}, then `make test-again`"
    if behind > STALE:
        return f"all tests ran last {behind} commits ago; run `make test-all` and commit {record.name}"
    return None


if __name__ == "__main__":
    problem = record_fault(Path(sys.argv[1]))
    if problem is not None:
        sys.exit(problem)
