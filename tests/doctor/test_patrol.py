"""The daemon's own look: problems are issues for as long as they hold, and only those it found itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from hosts.facts import HostFacts
from orchestrator.chores import Chores
from orchestrator.doctor.collect import Question
from orchestrator.doctor.patrol import WATCHED, Patrol, aside
from tests.daemon.world import World
from tests.doctor.boxes import Box
from tests.doctor.conftest import Make
from tests.doctor.faults import FAULTS
from tests.waiting import until


def plant(code: str, box: Box) -> None:
    next(fault for fault in FAULTS if fault.code == code).plant(box)


def patrol_of(world: World, box: Box) -> Patrol:
    def ask(facts: HostFacts | None) -> Question:
        box.facts = facts
        return box.question()

    facts = box.facts
    assert facts is not None
    return Patrol(world.context.issues, lambda: facts, ask)


async def test_a_problem_is_an_issue_until_it_is_gone(tmp_path: Path, make: Make) -> None:
    world, box = await World.open(tmp_path / "world"), make("cpu")
    try:
        patrol = patrol_of(world, box)
        assert await patrol.look() == "0 problems, 0 warnings"
        plant("storage_driver", box)
        box.write("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n")
        assert await patrol.look() == "1 problem, 1 warning"
        (issue,) = world.context.issues.list()
        assert (issue.code, issue.subject) == ("storage_driver", "host")
        assert "vfs" in issue.text
        assert issue.hint is not None
        assert issue.hint.endswith("`outrider doctor --rule storage_driver` says more")
        assert issue.evidence["driver"] == "vfs"
        assert await patrol.look() == "1 problem, 1 warning"
        box.podman()
        await patrol.look()
        assert world.context.issues.list() == ()
        assert [e.code async for e in world.journal.follow()] == ["storage_driver", "storage_driver_over"]
    finally:
        await world.close()


async def test_what_cannot_be_looked_at_stays_as_it_was(tmp_path: Path, make: Make) -> None:
    world, box = await World.open(tmp_path / "world"), make("cpu")
    try:
        patrol = patrol_of(world, box)
        box.write("/proc/sys/vm/overcommit_memory", "2\n")
        await patrol.look()
        assert world.context.issues.holds("overcommit", "host")
        box.remove("/proc/cmdline")  # the kernel's source
        await patrol.look()
        assert world.context.issues.holds("overcommit", "host")
        box.write("/proc/cmdline", "ro\n")
        box.write("/proc/sys/vm/overcommit_memory", "1\n")
        await patrol.look()
        assert world.context.issues.list() == ()
    finally:
        await world.close()


async def test_an_issue_of_somebody_else_is_left_alone(tmp_path: Path, make: Make) -> None:
    world, box = await World.open(tmp_path / "world"), make("cpu")
    try:
        issues = world.context.issues
        issues.open("overcommit", "host", "said by a closer watcher")
        patrol = patrol_of(world, box)
        box.write("/proc/sys/vm/overcommit_memory", "2\n")
        await patrol.look()
        box.write("/proc/sys/vm/overcommit_memory", "0\n")
        await patrol.look()
        assert [issue.text for issue in issues.list()] == ["said by a closer watcher"]
    finally:
        await world.close()


async def test_it_starts_no_container_and_leaves_what_others_watch(tmp_path: Path, make: Make) -> None:
    from dataclasses import replace  # noqa: PLC0415

    from orchestrator.config import Config  # noqa: PLC0415
    from orchestrator.doctor.asking import by_the_daemon  # noqa: PLC0415
    from orchestrator.paths import find  # noqa: PLC0415

    world, box = await World.open(tmp_path / "world"), make("cpu")
    try:
        plant("podman_socket", box)
        box.podman(run=f"/bin/touch {box.base}/started; exit 1")
        facts = box.facts
        assert facts is not None
        skip = by_the_daemon(find(tmp_path, tmp_path), Config(), facts).skip
        patrol = Patrol(world.context.issues, lambda: facts, lambda _: replace(box.question(), skip=skip))
        assert await patrol.look() == "0 problems, 0 warnings"
        assert not (box.base / "started").exists()
        assert "podman_socket" in WATCHED
    finally:
        await world.close()


async def test_the_event_loop_goes_on_and_a_look_that_hangs_holds_nothing_up() -> None:
    entered, release = threading.Event(), threading.Event()

    def work() -> str:
        entered.set()
        assert release.wait(10)
        return "done"

    task = asyncio.ensure_future(aside(work))
    await until(entered.is_set, 5.0)
    task.cancel()  # the daemon ends
    with pytest.raises(asyncio.CancelledError):
        await task
    release.set()
    assert await aside(lambda: "again") == "again"
    with pytest.raises(ZeroDivisionError):
        await aside(lambda: 1 // 0)


async def test_a_chore_that_also_runs_soon() -> None:
    ran: list[str] = []

    def note(name: str) -> Callable[[], Awaitable[object]]:
        async def work() -> None:
            ran.append(name)

        return work

    chores = Chores({"a": note("a"), "b": note("b")}, soon={"b": 0.0})
    chores.start()
    try:
        await until(lambda: ran == ["b"], 5.0)
    finally:
        await chores.close()
