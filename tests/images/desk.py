"""The images of a host without the host: real Podman and registry, real database and journal, no deployments."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from containers.podman import Podman
from orchestrator.catalogue import Catalogue
from orchestrator.catalogue.types import ImageEntry
from orchestrator.clock import SystemClock
from orchestrator.config import ImageSettings
from orchestrator.errors import OutriderError
from orchestrator.events import Journal
from orchestrator.image_pulls import ImagePulls
from orchestrator.image_sources import ImageSources
from orchestrator.images import Images
from orchestrator.jobs import Jobs
from orchestrator.store import Store
from orchestrator.timing import Timing
from orchestrator.views import JobState, JobView
from tests.waiting import until

LIMIT = 30.0


@dataclass
class Desk:
    """What a test turns: `settings`, `low_water`, `refusal` (raised while nothing may be pulled), `users`."""

    store: Store
    journal: Journal
    jobs: Jobs
    images: Images
    settings: ImageSettings = field(default_factory=ImageSettings)
    low_water: float = 0.0
    refusal: OutriderError | None = None
    users: dict[str, tuple[bool, Sequence[str]]] = field(default_factory=dict)

    async def events(self) -> list[Any]:
        await self.journal.flush()
        return list(await self.store.journal())

    async def codes(self) -> list[str]:
        return [e.code for e in await self.events()]

    async def ended(self, job: JobView) -> JobView:
        """The job's last view."""
        await until(lambda: self.jobs.get(job.id).state is not JobState.RUNNING, LIMIT, "the job ends")
        return self.jobs.get(job.id)


@asynccontextmanager
async def desk(folder: Path, podman: Podman, entries: Sequence[Mapping[str, object]] = ()) -> AsyncIterator[Desk]:
    """A desk with its database in `folder`; `entries` are the catalogue's images."""
    clock = SystemClock()
    store = await Store.open(folder / "images.db")
    journal = Journal(store, clock, host="h", boot_id="b", last=0)
    jobs = Jobs(clock)
    turned: Desk

    def may_pull() -> None:
        if turned.refusal is not None:
            raise turned.refusal

    sources = ImageSources(lambda: turned.settings)
    pulls = ImagePulls(
        podman=podman,
        sources=sources,
        jobs=jobs,
        journal=journal,
        clock=clock,
        timing=Timing().scaled(0.05),
        low_water=lambda: turned.low_water,
        may_pull=may_pull,
        known_bytes=lambda _: None,
        pulled=lambda image, reference: store.note_pulled(image, reference, clock.wall()),
    )
    images = Images(
        podman=podman,
        store=store,
        journal=journal,
        clock=clock,
        sources=sources,
        pulls=pulls,
        pulls_at_start=lambda: turned.settings.pull == "missing",
    )
    turned = Desk(store, journal, jobs, images)
    common = {"runtime": "llama.cpp", "backend": "cpu", "source": "a test"}
    images.configure(Catalogue(images=tuple(ImageEntry.model_validate({**common, **e}) for e in entries)))
    images.attend(lambda: turned.users)
    await images.read()
    try:
        yield turned
    finally:
        await jobs.close()
        await journal.flush()
        await store.close()


async def finished(task: asyncio.Task[Any]) -> OutriderError:
    """The error that a task ended with, printed."""
    try:
        await task
    except OutriderError as error:
        print(f"error[{error.code}]: {error.detail}\n  hint: {error.hint}")
        return error
    raise AssertionError("it went well")
