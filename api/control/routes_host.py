"""The machine and the daemon: /host, /telemetry, /health, /version, /healthz."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from api.control.deps import Daemon
from api.control.documents import AliveDocument, HostDocument, VersionDocument
from api.control.problems import documented
from orchestrator.telemetry import TelemetryView
from orchestrator.views import Health, Issue

router = APIRouter(prefix="/api/v1", tags=["host"])
open_router = APIRouter(tags=["operations"])


@router.get(
    "/host",
    operation_id="getHost",
    summary="What this machine is",
    response_model=HostDocument,
    responses=documented(401, 503),
)
async def host(daemon: Daemon) -> Mapping[str, Any]:
    """Processor, memory, accelerators, and what the probe could not find out."""
    return (await daemon.host()).to_dict()


@router.get(
    "/telemetry",
    operation_id="getTelemetry",
    summary="What this machine does",
    responses=documented(400, 401, 503),
)
async def telemetry(
    daemon: Daemon,
    since: Annotated[int, Query(ge=0, description="Only samples after this sequence; 0: all that are kept.")] = 0,
    limit: Annotated[int, Query(ge=1, le=5000, description="So many of the newest at most.")] = 60,
) -> Sequence[TelemetryView]:
    """Samples of the host, its GPUs, its engines and of strangers on the GPUs, oldest first. An hour is kept."""
    return await daemon.telemetry(since=since, limit=limit)


@router.get(
    "/health",
    operation_id="getHealth",
    summary="How the daemon finds itself",
    responses=documented(401),
)
async def health(daemon: Daemon) -> Health:
    """Podman, the gateway, the age of each loop, and problems with their next steps. 200 also when `ok` is false."""
    return await daemon.health()


@router.get(
    "/issues",
    operation_id="listIssues",
    summary="What a person should look at",
    responses=documented(401),
)
async def issues(daemon: Daemon) -> Sequence[Issue]:
    """Each holds for as long as it is listed; the oldest comes first."""
    return await daemon.issues()


@router.get(
    "/version",
    operation_id="getVersion",
    summary="What answers here",
    responses=documented(401),
)
async def version(request: Request) -> VersionDocument:
    """The version of the daemon and of this API."""
    return VersionDocument(name="outrider", version=request.app.version, api="v1")


@open_router.get(
    "/healthz",
    operation_id="isAlive",
    summary="Whether the daemon answers",
    responses=documented(421),
)
async def alive(daemon: Daemon) -> AliveDocument:
    """Needs no token and says nothing else. 200 as long as the daemon answers: a watchdog that restarts it because
    Podman is away would make things worse."""
    return AliveDocument(ok=(await daemon.health()).ok)
