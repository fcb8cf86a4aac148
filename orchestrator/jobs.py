"""Long API calls as objects: started, watched, cancelled by id."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

import structlog

from orchestrator.clock import Clock
from orchestrator.errors import NotFound, OutriderError
from orchestrator.views import JobState, JobView, Why

FINISHED_KEPT = 100
log = structlog.get_logger("jobs")


@dataclass(slots=True)
class Handle:
    """What a job's work is given to report how far it is."""

    _jobs: Jobs
    id: str

    def progress(self, detail: str, done: int | None = None, total: int | None = None) -> None:
        """Show `detail`, and bytes done of total where bytes are what moves."""
        self._jobs.update(self.id, detail=detail, done_bytes=done, total_bytes=total)

    def result(self, found: Mapping[str, object]) -> None:
        """What came of it, for programs."""
        self._jobs.found(self.id, found)


class Jobs:
    """All jobs of this daemon's life; the oldest finished ones are forgotten."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._views: dict[str, JobView] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._why: dict[str, Why] = {}
        """Why jobs are being cancelled that nobody asked to cancel."""

    def start(self, kind: str, subject: str, work: Callable[[Handle], Awaitable[str]]) -> JobView:
        """Run `work` in the background; what it returns is the job's last detail."""
        job_id = secrets.token_hex(8)
        self._views[job_id] = JobView(job_id, kind, subject, JobState.RUNNING, "started", self._clock.wall())
        self._tasks[job_id] = asyncio.create_task(self._run(job_id, work), name=f"job-{kind}-{subject}")
        self._forget_old()
        return self._views[job_id]

    def list(self) -> list[JobView]:
        return list(self._views.values())

    def get(self, job_id: str) -> JobView:
        try:
            return self._views[job_id]
        except KeyError:
            raise NotFound(f"no job {job_id!r}", hint="`GET /api/v1/jobs` lists them") from None

    async def cancel(self, job_id: str, why: Why | None = None) -> JobView:
        """Cancel and wait until it has cleaned up after itself. A finished job stays as it is.

        `why` is shown as the job's error where it was not a person who cancelled it.
        """
        self.get(job_id)
        task = self._tasks.get(job_id)
        if task is not None:
            if why is not None:
                self._why[job_id] = why
            await asyncio.sleep(0)  # a task that never began could not say that it was cancelled
            task.cancel()
            await asyncio.wait([task])
        return self.get(job_id)

    async def close(self) -> None:
        await asyncio.sleep(0)  # see `cancel`
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def update(self, job_id: str, *, detail: str, done_bytes: int | None, total_bytes: int | None) -> None:
        self._views[job_id] = replace(
            self._views[job_id], detail=detail, done_bytes=done_bytes, total_bytes=total_bytes
        )

    def found(self, job_id: str, result: Mapping[str, object]) -> None:
        self._views[job_id] = replace(self._views[job_id], result=result)

    async def _run(self, job_id: str, work: Callable[[Handle], Awaitable[str]]) -> None:
        try:
            detail = await work(Handle(self, job_id))
        except asyncio.CancelledError:
            why = self._why.get(job_id)
            self._finish(job_id, JobState.CANCELLED, "cancelled" if why is None else why.text, why)
        except OutriderError as error:
            self._finish(job_id, JobState.FAILED, error.detail, Why(error.code, error.detail, error.hint))
        except Exception as error:  # a job's bug must not end the daemon; it is shown and logged whole
            log.exception("job_crashed", job=job_id)
            self._finish(job_id, JobState.FAILED, str(error), Why("internal", f"{type(error).__name__}: {error}"))
        else:
            self._finish(job_id, JobState.DONE, detail, None)
        finally:
            self._tasks.pop(job_id, None)
            self._why.pop(job_id, None)

    def _finish(self, job_id: str, state: JobState, detail: str, error: Why | None) -> None:
        self._views[job_id] = replace(self._views[job_id], state=state, detail=detail, error=error)

    def _forget_old(self) -> None:
        finished = [i for i, v in self._views.items() if v.state is not JobState.RUNNING]
        for job_id in finished[: max(0, len(finished) - FINISHED_KEPT)]:
            del self._views[job_id]
