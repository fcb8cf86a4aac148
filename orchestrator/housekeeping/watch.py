"""Low water: looking at the disks again and again, and stopping pulls while one is low.

Engines are never touched: what they need is in memory, and on a full disk they answer on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import structlog

from containers.podman import Podman
from orchestrator.context import Context
from orchestrator.decision import Decision
from orchestrator.disk import GIB
from orchestrator.errors import DiskFull, OutriderError
from orchestrator.housekeeping import disks, water
from orchestrator.housekeeping.water import Level, Use, Water
from orchestrator.issues import Issues
from orchestrator.jobs import Jobs
from orchestrator.views import JobState, Why

LOW_DISK = "low_disk"
LOOK_LIMIT = 10.0
"""Seconds for a look at the disks: one on a network may hang."""
HINT = "`outrider prune --dry-run` shows what can go"
log = structlog.get_logger("housekeeping")


def may_pull(issues: Issues, kind: str) -> None:
    """Raise `DiskFull` while a job of this kind would write onto a disk that is below its low water."""
    for issue in issues.list():
        if issue.code == LOW_DISK and water.stopped([_uses(issue.evidence.get("holds"))], kind):
            raise DiskFull(
                f"nothing more is pulled onto {issue.subject}: {issue.text}", hint=HINT, evidence=issue.evidence
            )


class LowWater:
    """Opens and closes `low_disk`, one issue a file system, and cancels the pulls that write there."""

    def __init__(
        self,
        context: Context,
        podman: Podman,
        jobs: Jobs,
        *,
        low_water: Callable[[], float],
        reclaimable: Callable[[], Awaitable[int | None]],
    ) -> None:
        """`reclaimable` says how many bytes a prune would free, None when that is not known."""
        self._c = context
        self._podman = podman
        self._jobs = jobs
        self._low_water = low_water
        self._reclaimable = reclaimable
        self._places: tuple[disks.Place, ...] = ()
        self._look: asyncio.Task[tuple[Level, ...]] | None = None
        self._low: dict[str, frozenset[Use]] = {}
        self._told: set[str] = set()
        """Jobs that were told to end: once, for a second time would cut off how they clear up."""

    async def look(self) -> None:
        """One round: the loop's work."""
        levels = await self._levels()
        if levels is None:
            return
        opened = [level for level in levels if self._judge(level)]
        for mount in self._low.keys() - {level.mount for level in levels}:
            del self._low[mount]
            self._c.issues.close(LOW_DISK, mount, f"{mount} holds nothing of Outrider's any more")
        if self._low:
            await self._stop_pulls()
        if opened:
            await self._say_what_can_go(opened)

    async def _levels(self) -> tuple[Level, ...] | None:
        """The disks as they are; None when they do not answer: a look that hangs is not begun a second time."""
        if self._look is None or self._look.done():
            places = await self._where()
            self._look = asyncio.create_task(asyncio.to_thread(disks.look, places))
        done, _ = await asyncio.wait({self._look}, timeout=LOOK_LIMIT)
        if not done:
            log.warning("disks_do_not_answer", places=[str(path) for _, path in self._places])
            return None
        return self._look.result()

    async def _where(self) -> tuple[disks.Place, ...]:
        """Podman's folders are asked for until it has said them once; ours are known."""
        ours = ((Use.STATE, self._c.paths.state_dir), (Use.STORE, self._c.paths.store))
        if not self._places:
            with suppress(OutriderError):
                self._places = await podman_places(self._podman)
        return (*ours, *self._places)

    def _judge(self, level: Level) -> bool:
        """Open, refresh or close the issue of one disk; whether it was opened now."""
        was_low = level.mount in self._low
        decision = water.decide(level, low_water=self._low_water(), was_low=was_low)
        if decision.action is Water.LOW:
            self._low[level.mount] = level.uses
            self._open(level, decision)
            return not was_low
        if self._low.pop(level.mount, None) is not None:
            text = f"{level.mount} has {level.free / GIB:.2f} GiB free again"
            self._c.issues.close(LOW_DISK, level.mount, text)
        return False

    def _open(self, level: Level, decision: Decision[Water], reclaimable: int | None = None) -> None:
        known = next((i for i in self._c.issues.list() if (i.code, i.subject) == (LOW_DISK, level.mount)), None)
        can_go = known.evidence.get("reclaimable_bytes") if known is not None else None
        if reclaimable is not None:
            can_go = reclaimable
        evidence = {**decision.evidence, "reason": decision.reason}
        hint = HINT
        if isinstance(can_go, int):
            evidence["reclaimable_bytes"] = can_go
            hint = f"{HINT}: {can_go / GIB:.2f} GiB"
        text = (
            f"{level.mount} has {level.free / GIB:.2f} of {level.total / GIB:.2f} GiB free"
            if decision.reason == "few_bytes"
            else f"{level.mount} has {level.inodes_free} of {level.inodes} inodes free"
        )
        low_water = f"{self._low_water():.0%} is the low water"
        self._c.issues.open(LOW_DISK, level.mount, f"{text}; {low_water}", hint=hint, evidence=evidence)

    async def _stop_pulls(self) -> None:
        running = [job for job in self._jobs.list() if job.state is JobState.RUNNING]
        self._told &= {job.id for job in running}
        for job in running:
            low = next((m for m, uses in self._low.items() if water.stopped([uses], job.kind)), None)
            if low is None or job.id in self._told:
                continue
            self._told.add(job.id)
            text = f"{low} is below its low water; what can be gone on with stays"
            self._c.journal.emit(
                "housekeeping",
                "pull_stopped",
                f"{job.kind} of {job.subject} is stopped: {text}",
                evidence={"job": job.id, "kind": job.kind, "mount": low, "done_bytes": job.done_bytes},
            )
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_LIMIT):
                    await self._jobs.cancel(job.id, Why(DiskFull.code, text, HINT))

    async def _say_what_can_go(self, opened: list[Level]) -> None:
        """Finding out takes its time, so the issue is there before."""
        can_go = await self._reclaimable()
        for level in opened:
            decision = water.decide(level, low_water=self._low_water(), was_low=True)
            if can_go is not None and level.mount in self._low:
                self._open(level, decision, can_go)


async def podman_places(podman: Podman) -> tuple[disks.Place, ...]:
    """Podman's folders on this machine. Raises `ContainerError`."""
    storage = await podman.storage()
    return (Use.IMAGES, Path(storage.graph_root)), (Use.TEMPORARY, Path(storage.temporary))


def _uses(value: object) -> frozenset[Use]:
    return frozenset(Use(v) for v in value if v in set(Use)) if isinstance(value, list) else frozenset()
