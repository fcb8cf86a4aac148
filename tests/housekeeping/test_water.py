"""When a disk is low: the marks, the margin between them, inodes, and what is stopped."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.housekeeping import disks
from orchestrator.housekeeping.water import Level, Use, Water, decide, stopped


def level(free: int, *, inodes: int | None = None, inodes_free: int | None = None) -> Level:
    return Level("/x", frozenset({Use.STORE}), 1000, free, inodes, inodes_free)


@pytest.mark.parametrize(
    ("free", "was_low", "action"),
    [
        (50, False, Water.FINE),
        (49, False, Water.LOW),
        (50, True, Water.LOW),
        (59, True, Water.LOW),
        (60, True, Water.FINE),
    ],
)
def test_low_below_the_mark_and_until_a_hundredth_above_it(free: int, was_low: bool, action: Water) -> None:
    assert decide(level(free), low_water=0.05, was_low=was_low).action is action


def test_inodes_count_too() -> None:
    few = decide(level(900, inodes=1000, inodes_free=49), low_water=0.05, was_low=False)
    assert (few.action, few.reason) == (Water.LOW, "few_inodes")
    assert few.evidence["free_inodes"] == 49
    assert decide(level(900, inodes=1000, inodes_free=50), low_water=0.05, was_low=False).action is Water.FINE
    assert decide(level(49, inodes=1000, inodes_free=9), low_water=0.05, was_low=False).reason == "few_bytes"


def test_without_a_low_water_nothing_is_low() -> None:
    for was_low in (False, True):
        assert decide(level(0), low_water=0.0, was_low=was_low).action is Water.FINE


@given(st.lists(st.integers(500, 590), min_size=2), st.booleans())
def test_between_the_marks_it_stays_as_it_is(free: list[int], was_low: bool) -> None:
    """0.5 to 0.59 of 10000 bytes with a mark at 0.05: neither opens nor closes."""
    for bytes_free in free:
        found = Level("/x", frozenset(), 10_000, bytes_free, None, None)
        assert (decide(found, low_water=0.05, was_low=was_low).action is Water.LOW) == was_low


@pytest.mark.parametrize(
    ("low", "kind", "is_stopped"),
    [
        ({Use.STORE}, "model_pull", True),
        ({Use.STORE}, "model_add", True),
        ({Use.STORE, Use.STATE}, "image_pull", False),
        ({Use.TEMPORARY}, "image_pull", True),
        ({Use.IMAGES}, "image_pull", True),
        ({Use.IMAGES}, "model_pull", False),
        ({Use.STATE}, "model_pull", False),
        (set(Use), "prune", False),
    ],
)
def test_only_what_writes_to_the_low_disk_is_stopped(low: set[Use], kind: str, is_stopped: bool) -> None:
    assert stopped([low], kind) is is_stopped


def test_disks_are_looked_at_once_each_and_by_their_mount_points(tmp_path: Path) -> None:
    small = tmp_path / "small"
    (tmp_path / "state").mkdir()
    small.mkdir()
    (tmp_path / "link").symlink_to(small)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,nr_inodes=100", "tmpfs", small], check=True)
    try:
        places = [
            (Use.STATE, tmp_path / "state"),
            (Use.STORE, tmp_path / "link" / "not" / "yet"),
            (Use.IMAGES, small),
        ]
        found = {found.mount: found for found in disks.look(places)}
        assert len(found) == 2
        mine = found[str(small.resolve())]
        assert mine.uses == {Use.STORE, Use.IMAGES}
        assert (mine.total, mine.inodes) == (4 * 2**20, 100)
        assert mine.inodes_free is not None
        assert mine.inodes_free < 100
    finally:
        subprocess.run(["umount", small], check=True)
