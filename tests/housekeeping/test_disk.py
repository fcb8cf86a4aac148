"""Whether a disk has room: sums over one file system, margins, low water, read-only."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from orchestrator import disk
from orchestrator.errors import DiskFull, DiskReadOnly

MIB = 2**20


def test_what_goes_onto_one_disk_counts_together(small: Path) -> None:
    image = disk.Load(small / "images", disk.image_bytes(10 * MIB), "the image")
    weights = disk.Load(small / "models" / "not" / "there", 20 * MIB, "the weights")
    disk.check([image, weights], low_water=0.05)  # (25 + 20) * 1.1 + 3.2 of 64
    with pytest.raises(DiskFull) as caught:
        disk.check([image, weights, disk.Load(small, 20 * MIB, "a drafter")], low_water=0.05)
    assert "the image and the weights and a drafter need" in caught.value.detail
    assert caught.value.evidence["needed_bytes"] == int(65 * MIB * 1.1)
    assert caught.value.evidence["kept_bytes"] == int(64 * MIB * 0.05)
    assert caught.value.retryable


def test_below_low_water_nothing_more_comes_and_nothing_is_always_fine(small: Path) -> None:
    with (small / "full").open("wb") as file:
        file.write(bytes(62 * MIB))
    with pytest.raises(DiskFull):
        disk.check([disk.Load(small, 1, "a byte")], low_water=0.05)
    disk.check([disk.Load(small, 1, "a byte")], low_water=0.0)
    disk.check([disk.Load(small, 0, "nothing")], low_water=0.05)
    assert (found := disk.look(small)).free / found.total == pytest.approx(2 / 64, abs=0.01)


def test_a_disk_that_takes_no_writes_is_no_full_one(small: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small], check=True)
    with pytest.raises(DiskReadOnly, match="read-only"):
        disk.check([disk.Load(small, 1, "a byte")], low_water=0.05)


def test_what_is_on_its_way_counts_for_those_who_come_later(small: Path, tmp_path: Path) -> None:
    coming, share = disk.OnTheWay(), [1.0]
    first = disk.Load(small / "images", 40 * MIB, "the first")
    second = disk.Load(small / "models", 20 * MIB, "the second")
    elsewhere = disk.Load(tmp_path, 2**60, "a huge one on another disk")
    with coming.bring([elsewhere], lambda: 1.0), coming.bring([first], lambda: share[0]) as one:
        disk.check([first], low_water=0.0, besides=coming.before(one))
        with coming.bring([second], lambda: 1.0) as two:
            disk.check([first], low_water=0.0, besides=coming.before(one))  # who came first is not refused for it
            with pytest.raises(DiskFull, match="the second and the first, which is on its way, need"):
                disk.check([second], low_water=0.0, besides=coming.before(two))
            share[0] = 0.5
            disk.check([second], low_water=0.0, besides=coming.before(two))
    assert coming.before() == []
