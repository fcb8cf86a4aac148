"""Loading marks by themselves: durable, private, read with suspicion."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from orchestrator.engine import Engine
from orchestrator.errors import DiskError
from orchestrator.loading_marks import CODE, LEFT, UNREADABLE, LoadingMarks
from orchestrator.views import Desired, State
from tests.daemon.world import LIMIT, World, a_plan, marks_in
from tests.waiting import until


def an_engine(name: str = "m", generation: int = 1) -> Engine:
    return Engine("0" * 16, name, generation, a_plan(total=7), "key", None, None, 0.0)


def inherited(folder: Path, boot_id: str = "b") -> LoadingMarks:
    marks = marks_in(folder, boot_id)
    marks.inherit()
    return marks


async def test_a_mark_says_what_is_loaded_and_is_nobody_elses_to_read(tmp_path: Path) -> None:
    marks = inherited(tmp_path / "loading")
    await marks.place(an_engine())
    file = tmp_path / "loading" / "m.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    said = json.loads(file.read_text())
    assert (said["boot_id"], said["generation"], said["expected_bytes"]) == ("b", 1, 7)
    assert said["plan"] == a_plan(total=7).digest
    assert [p.name for p in file.parent.iterdir()] == ["m.json"]
    await marks.lift("m", 1)
    assert list(file.parent.iterdir()) == []


async def test_file_and_folder_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark that is only in the page cache is gone with the crash that it is for."""
    synced: list[str] = []
    fsync = os.fsync

    def spy(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}").removeprefix(str(tmp_path)))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", spy)
    marks = inherited(tmp_path / "loading")
    await marks.place(an_engine())
    assert synced == ["", "/loading/.m.json.new", "/loading"]
    synced.clear()
    await marks.lift("m", 1)
    assert synced == ["/loading"]


async def test_only_another_boots_mark_is_a_suspicion(tmp_path: Path) -> None:
    await inherited(tmp_path / "l", "one").place(an_engine())
    same = inherited(tmp_path / "l", "one")
    assert same.suspicion("m") is None
    other = inherited(tmp_path / "l", "two")
    found = other.suspicion("m")
    assert found is not None
    assert found.mark is not None
    assert (found.mark.boot_id, found.evidence["boot_id"], found.evidence["mark_expected_bytes"]) == ("one", "two", 7)
    assert other.suspicion("n") is None


async def test_each_of_several_is_suspected(tmp_path: Path) -> None:
    marks = inherited(tmp_path / "l", "one")
    for name in ("m", "n", "o"):
        await marks.place(an_engine(name))
    await marks.lift("n", 1)
    after = inherited(tmp_path / "l", "two")
    assert [name for name in ("m", "n", "o") if after.suspicion(name)] == ["m", "o"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe\x00",
        b"[]",
        b"null",
        b'{"deployment": "m"}',
        b'{"deployment": "other", "generation": 1, "boot_id": "b", "plan": "p", "image": "i",'
        b' "expected_bytes": 1, "at": 1}',
        b'{"deployment": "m", "generation": "x", "boot_id": "b", "plan": "p", "image": "i",'
        b' "expected_bytes": 1, "at": 1}',
        b"[" * 100_000,
    ],
)
async def test_a_damaged_mark_is_a_suspicion(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.json").write_bytes(content)
    marks = inherited(tmp_path)
    found = marks.suspicion("m")
    assert found is not None
    assert found.mark is None
    assert str(tmp_path / "m.json") in found.text
    await marks.forget("m", "a person knows")
    assert (marks.suspicion("m"), list(tmp_path.iterdir())) == (None, [])


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to(path)])
async def test_a_mark_that_is_no_file_is_one_too(tmp_path: Path, make: object) -> None:
    assert callable(make)
    make(tmp_path / "m.json")
    marks = inherited(tmp_path)
    assert marks.suspicion("m") is not None
    await marks.forget("m", "a person knows")
    assert list(tmp_path.iterdir()) == []


async def test_what_was_cut_off_before_it_counted_is_no_mark(tmp_path: Path) -> None:
    (tmp_path / ".m.json.new").write_text("{")
    (tmp_path / "notes.txt").write_text("a person's")
    marks = inherited(tmp_path)
    assert marks.suspicion("m") is None
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


async def test_a_mark_of_this_boot_that_nothing_loads_for_is_lifted(tmp_path: Path) -> None:
    """The daemon died after the engine was ready: the next boot must not take that for a crash."""
    first = inherited(tmp_path / "l")
    await first.place(an_engine("m"))
    await first.place(an_engine("n", 4))
    second = inherited(tmp_path / "l")
    await second.settle({"n"})
    assert [p.name for p in (tmp_path / "l").iterdir()] == ["n.json"]
    await second.lift("n", 3)
    assert [p.name for p in (tmp_path / "l").iterdir()] == ["n.json"], "an older engine's end is not this load's"
    await second.withdraw()
    assert list((tmp_path / "l").iterdir()) == []


async def test_a_load_that_cannot_be_marked_does_not_begin(tmp_path: Path) -> None:
    (tmp_path / "loading").write_text("a file in the folder's place")
    marks = inherited(tmp_path / "loading")
    assert marks._issues.holds(UNREADABLE)
    with pytest.raises(DiskError) as refused:
        await marks.place(an_engine())
    assert "m-1 is not loaded" in refused.value.detail
    assert refused.value.hint


async def test_a_mark_that_cannot_be_removed_is_an_issue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = inherited(tmp_path / "l")
    await marks.place(an_engine())
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda self: (_ for _ in ()).throw(OSError(30, "Read-only file system")))
        await marks.lift("m", 1)
    assert marks._issues.holds(LEFT, "m")
    await marks.lift("m", 1)
    assert not marks._issues.holds(LEFT)
    assert list((tmp_path / "l").iterdir()) == []


async def test_a_suspected_deployment_waits_for_a_forced_start(world: World) -> None:
    await world.marks.place(an_engine())
    marks = inherited(world.paths.loading, "another boot")
    world.d.suspicion = marks.suspicion("m")
    world.d.desired = Desired.RUNNING
    world.run()
    await until(lambda: world.d.shown_state() is State.FAILED, LIMIT, "failed")
    view = world.actor.view()
    assert view.reason is not None
    assert view.reason.code == CODE
    assert "outrider start --force m" in str(view.reason.hint)
    assert (view.desired, view.next_attempt_s, view.engine) == (Desired.RUNNING, None, None)
    assert not world.route().hold
    await world.actor.set_desired(Desired.RUNNING, "t")
    assert world.runner.ups == 0, "a wish that says nothing of the crash changes nothing"
    await world.actor.set_desired(Desired.RUNNING, "t", force=True)
    await until(lambda: world.d.serving_engine is not None, LIMIT, "an engine serves")
    assert world.actor.view().reason is None
