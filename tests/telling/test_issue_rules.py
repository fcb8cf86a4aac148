"""Each rule finds what it is for, leaves the rest alone, and its issue goes by itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator import issue_rules
from orchestrator.clock import SystemClock
from orchestrator.errors import DatabaseFailed
from orchestrator.events import Journal
from orchestrator.health.pace import Pace
from orchestrator.issue_rules._sight import Sight
from orchestrator.issue_watch import IssueWatch
from orchestrator.issues import Issues
from orchestrator.store import Store
from orchestrator.views import (
    DeploymentView,
    Desired,
    EngineMemory,
    EngineView,
    Event,
    Health,
    PauseView,
    State,
    Why,
)
from tests.daemon.world import a_plan

GIB = 2**30
WELL = Health(True, "1", "h", "b", "o", 1.0, True, True, {"reconcile": 0.1})


def deployment(**more: Any) -> DeploymentView:
    view = DeploymentView("m", Desired.RUNNING, "t", State.READY, None, "h", None, (), 0, 0, None, False, None, None, 0)
    return replace(view, **more)


def engine(observed: int | None, expected: int) -> EngineView:
    memory = EngineMemory(a_plan(expected).expected_memory, observed)
    return EngineView(
        "e", "m", 1, State.READY, "c", 1, "p", "llama.cpp", "i", "none", 0, 1, 1, None, None, 0.0, 0, memory
    )


NOTHING = Sight(at=1e9, health=WELL, deployments=(deployment(),))
SERVES = replace(NOTHING, deployments=(deployment(engines=(engine(None, 1),)),))
FAILED = deployment(state=State.FAILED, reason=Why("oom", "m: no memory", "use less"), next_attempt_s=2.0)
CASES: dict[str, tuple[Sight, Sight]] = {
    # code: (where it holds, where something like it is no reason to look)
    "parked": (
        replace(NOTHING, deployments=(FAILED,), parked=frozenset({"m"})),
        replace(NOTHING, deployments=(replace(FAILED, desired=Desired.STOPPED),), parked=frozenset({"m"})),
    ),
    "not_coming_up": (
        replace(NOTHING, deployments=(FAILED,), failures={"m": 3}),
        replace(NOTHING, deployments=(FAILED,), failures={"m": 2}),
    ),
    "drifted": (
        replace(NOTHING, deployments=(deployment(drifted=True),)),
        replace(NOTHING, deployments=(deployment(drifted=True, desired=Desired.STOPPED),)),
    ),
    "paused_long": (
        replace(NOTHING, pauses=(PauseView("m", "t", 1e9 - 90_000),)),
        replace(NOTHING, pauses=(PauseView("m", "t", 1e9 - 80_000),)),
    ),
    "podman_away": (
        replace(NOTHING, health=replace(WELL, podman=False)),
        replace(NOTHING, health=replace(WELL, podman=None)),
    ),
    "gateway_away": (replace(NOTHING, gateway_quiet_s=31.0), replace(NOTHING, gateway_quiet_s=29.0)),
    "config_bad": (
        replace(NOTHING, health=replace(WELL, problems=(Why("config_invalid", "x.toml: key"),))),
        replace(NOTHING, health=replace(WELL, problems=(Why("gpu_locked", "another"),))),
    ),
    "journal_unwritten": (replace(NOTHING, unwritten=3), NOTHING),
    "loop_stuck": (replace(NOTHING, stuck=("reconcile",)), NOTHING),
    "slower_than_usual": (
        replace(SERVES, paces={"e": Pace(20, 2.0, 0.2, None, None)}),
        replace(SERVES, paces={"e": Pace(20, 0.5, 0.2, 40.0, 50.0), "gone": Pace(20, 2.0, 0.2)}),
    ),
    "memory_above_plan": (
        replace(NOTHING, deployments=(deployment(engines=(engine(12 * GIB, 10 * GIB),)),)),
        replace(NOTHING, deployments=(deployment(engines=(engine(11 * GIB, 10 * GIB), engine(None, 1))),)),
    ),
}


WAITING = (
    replace(FAILED, state=State.CREATING, reason=Why("waiting_for_room", "waiting for room: n is loaded")),
    replace(FAILED, state=State.CREATING, reason=Why("waiting_for_turn", "waiting for its turn (after n)")),
    replace(FAILED, reason=Why("gpu_lost", "GPU 0000:01:00.0 is lost"), next_attempt_s=None),
)


@pytest.mark.parametrize("view", WAITING)
def test_what_failed_before_and_waits_for_something_else_now_is_not_failing(view: DeploymentView) -> None:
    (rule,) = (rule for rule in issue_rules.load() if rule.code == "not_coming_up")
    assert list(rule.detect(replace(NOTHING, deployments=(view,), failures={"m": 3}))) == []


def test_there_is_a_case_for_each_rule() -> None:
    assert set(CASES) == {rule.code for rule in issue_rules.load()}


@pytest.mark.parametrize("code", CASES)
async def test_it_comes_and_goes(code: str, tmp_path: Path) -> None:
    """Found where it holds and with a next step; not where something like it is; withdrawn with a sentence."""
    store = await Store.open(tmp_path / "db")
    try:
        clock = SystemClock()
        journal = Journal(store, clock, host="h", boot_id="b", last=0)
        issues = Issues(journal, clock)
        holds, calm = CASES[code]
        now = calm

        async def look() -> Sight:
            return now

        watch = IssueWatch(issues, look)
        await watch.look()
        assert issues.list() == ()
        now = holds
        await watch.look()
        await watch.look()
        (issue,) = issues.list()
        assert issue.code == code
        assert issue.hint
        assert "`" in issue.hint or issue.hint == "use less"
        now = calm
        await watch.look()
        assert issues.list() == ()
        opened, closed = _events(journal)
        assert (opened.code, closed.code) == (code, f"{code}_over")
        assert closed.text == next(r for r in issue_rules.load() if r.code == code).withdraw(issue.subject)
    finally:
        await store.close()


async def test_another_ones_issue_is_left_alone(tmp_path: Path) -> None:
    store = await Store.open(tmp_path / "db")
    try:
        journal = Journal(store, SystemClock(), host="h", boot_id="b", last=0)
        issues = Issues(journal, SystemClock())
        issues.open("parked", "m", "somebody else's words")
        sights = [CASES["parked"][0], NOTHING]

        async def look() -> Sight:
            return sights.pop(0)

        watch = IssueWatch(issues, look)
        await watch.look()
        await watch.look()
        assert [issue.text for issue in issues.list()] == ["somebody else's words"]
    finally:
        await store.close()


def _events(journal: Journal) -> list[Event]:
    return list(journal._recent)


async def test_what_the_disk_refused_is_written_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal is made by hand here; a disk that is full is among the tests of endurance."""
    store = await Store.open(tmp_path / "db")
    try:
        journal = Journal(store, SystemClock(), host="h", boot_id="b", last=0)

        async def refuse(events: object) -> None:
            raise DatabaseFailed("disk full")

        with monkeypatch.context() as broken:
            broken.setattr(store, "append", refuse)
            for number in range(3):
                journal.emit("k", f"c{number}", "text")
            await journal.flush()
            assert journal.unwritten == 3
            journal.emit("k", "c3", "text")
            await journal.flush()
            assert journal.unwritten == 4
        await journal.flush()
        assert journal.unwritten == 0
        assert [event.code for event in await store.journal()] == ["c0", "c1", "c2", "c3"]
    finally:
        await store.close()
