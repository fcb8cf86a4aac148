"""Long calls: /jobs."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter

from api.control.deps import Daemon, JobId
from api.control.problems import documented
from orchestrator.views import JobView

router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"])


@router.get("", operation_id="listJobs", summary="All jobs", responses=documented(401))
async def jobs(daemon: Daemon) -> Sequence[JobView]:
    """Those that run, and those that ended since the daemon started."""
    return await daemon.jobs()


@router.get("/{job_id}", operation_id="getJob", summary="One job", responses=documented(400, 401, 404))
async def job(daemon: Daemon, job_id: JobId) -> JobView:
    """Its state and how far it is."""
    return await daemon.job(job_id)


@router.delete(
    "/{job_id}", operation_id="cancelJob", summary="Cancel a job", responses=documented(400, 401, 404, 409, 415)
)
async def cancel(daemon: Daemon, job_id: JobId) -> JobView:
    """Stops it and takes back what it began. A job that has ended stays as it is."""
    return await daemon.cancel_job(job_id)
