"""The loop that watches the disks: issue, pulls stopped and refused, all over when there is room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from containers.errors import PodmanUnreachable
from containers.spec import Storage
from orchestrator.errors import DiskFull
from orchestrator.housekeeping import LOW_DISK, may_pull
from orchestrator.housekeeping.watch import LowWater
from orchestrator.jobs import Handle, Jobs
from orchestrator.views import JobState
from tests.daemon.world import World

MIB = 2**20


class Where:
    """In Podman's place: says where its storage is, once it answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.answers = True
        self.asked = 0

    async def storage(self) -> Storage:
        self.asked += 1
        if not self.answers:
            raise PodmanUnreachable("away")
        return Storage(str(self.folder / "graph"), str(self.folder / "tmp"))


@asynccontextmanager
async def watching(state: Path, podman: Where, can_go: int | None = 7 * 2**30) -> AsyncIterator[tuple[World, LowWater]]:
    async def reclaimable() -> int | None:
        return can_go

    world = await World.open(state)
    jobs = Jobs(world.clock)
    water = LowWater(
        world.context,
        podman,  # type: ignore[arg-type]
        jobs,
        low_water=lambda: 0.05,
        reclaimable=reclaimable,
    )
    world.jobs = jobs  # type: ignore[attr-defined]
    try:
        yield world, water
    finally:
        await jobs.close()
        await world.close()


async def endless(handle: Handle) -> str:
    await asyncio.Event().wait()
    return "never"


async def test_a_low_disk_stops_what_writes_there_and_nothing_else(small: Path, tmp_path: Path) -> None:
    elsewhere = Where(tmp_path)
    async with watching(small, elsewhere) as (world, water):
        jobs: Jobs = world.jobs  # type: ignore[attr-defined]
        pull = jobs.start("model_pull", "big", endless)
        image = jobs.start("image_pull", "img", endless)
        await water.look()
        assert not world.context.issues.list()
        may_pull(world.context.issues, "model_pull")

        ballast = small / "ballast"
        ballast.write_bytes(bytes(62 * MIB))
        await water.look()
        (issue,) = world.context.issues.list()
        assert (issue.code, issue.subject) == (LOW_DISK, str(small))
        assert issue.evidence["total_bytes"] == 64 * MIB
        assert issue.evidence["holds"] == ["state", "store"]
        assert issue.hint == "`outrider prune --dry-run` shows what can go: 7.00 GiB"
        stopped = jobs.get(pull.id)
        assert stopped.state is JobState.CANCELLED
        assert stopped.error is not None
        assert stopped.error.code == "disk_full"
        assert str(small) in stopped.detail
        assert jobs.get(image.id).state is JobState.RUNNING
        with pytest.raises(DiskFull) as caught:
            may_pull(world.context.issues, "model_add")
        assert caught.value.hint == "`outrider prune --dry-run` shows what can go"
        may_pull(world.context.issues, "image_pull")

        ballast.write_bytes(bytes(60 * MIB + MIB // 2))  # above the mark, and not by enough
        await water.look()
        assert world.context.issues.holds(LOW_DISK)
        ballast.unlink()
        await water.look()
        assert not world.context.issues.holds(LOW_DISK)
        may_pull(world.context.issues, "model_add")
        codes = await world.codes()
        assert codes.count("low_disk") == codes.count("low_disk_over") == codes.count("pull_stopped") == 1


async def test_podmans_folders_are_asked_for_once_it_answers_and_then_no_more(small: Path, tmp_path: Path) -> None:
    podman = Where(small)
    podman.answers = False
    async with watching(tmp_path / "state", podman) as (world, water):
        jobs: Jobs = world.jobs  # type: ignore[attr-defined]
        (small / "ballast").write_bytes(bytes(62 * MIB))
        image = jobs.start("image_pull", "img", endless)
        await water.look()
        assert not world.context.issues.list()
        podman.answers = True
        for _ in range(3):
            await water.look()
        assert podman.asked == 2
        (issue,) = world.context.issues.list()
        assert issue.evidence["holds"] == ["images", "temporary"]
        assert jobs.get(image.id).state is JobState.CANCELLED
        with pytest.raises(DiskFull):
            may_pull(world.context.issues, "image_pull")
        may_pull(world.context.issues, "model_pull")


async def test_a_job_that_clears_up_slowly_is_told_once(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.housekeeping.watch.LOOK_LIMIT", 0.1)
    told, may_end = [], asyncio.Event()

    async def slow(handle: Handle) -> str:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                told.append(1)
                await may_end.wait()
                raise

    async with watching(small, Where(small)) as (world, water):
        jobs: Jobs = world.jobs  # type: ignore[attr-defined]
        job = jobs.start("model_pull", "big", slow)
        await asyncio.sleep(0)
        (small / "ballast").write_bytes(bytes(62 * MIB))
        for _ in range(3):
            await water.look()
        assert told == [1]
        assert jobs.get(job.id).state is JobState.RUNNING
        may_end.set()
        await jobs.cancel(job.id)
        assert jobs.get(job.id).error is not None
