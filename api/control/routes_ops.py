"""Operations: /reload, /shutdown, /metrics."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from api.control import metrics as exposition
from api.control.deps import Daemon
from api.control.documents import PruneBody, ReloadBody, ShutdownBody, StoppingDocument
from api.control.problems import documented
from orchestrator.housekeeping.unused import DAY, Wish
from orchestrator.views import PruneResult, ReloadResult

router = APIRouter(tags=["operations"])


@router.post(
    "/api/v1/reload",
    operation_id="reloadConfiguration",
    summary="Read the configuration again",
    responses=documented(400, 401, 409, 413, 415),
)
async def reload(daemon: Daemon, body: ReloadBody | None = None) -> ReloadResult:
    """Validate, compare, apply only what changed. A bad file changes nothing and says where it is bad."""
    return await daemon.reload(dry_run=body is not None and body.dry_run)


@router.post(
    "/api/v1/shutdown",
    operation_id="shutDown",
    summary="End the daemon",
    status_code=202,
    responses=documented(400, 401, 413, 415),
)
async def shutdown(daemon: Daemon, body: ShutdownBody | None = None) -> StoppingDocument:
    """Ends it after this answer. Without `engines` they and the gateway go on, and the next daemon adopts them."""
    engines = body is not None and body.engines
    await daemon.shutdown(engines=engines)
    return StoppingDocument(stopping=True, engines=engines)


@router.post(
    "/api/v1/prune",
    operation_id="prune",
    summary="Remove what nothing needs",
    responses=documented(400, 401, 413, 415),
)
async def prune(daemon: Daemon, body: PruneBody | None = None) -> PruneResult:
    """Images, weights, caches and logs that Outrider brought and nothing uses; a dry run unless it says otherwise.

    Each is looked at again right before it goes. One that cannot be removed is in the answer, and the rest goes on.
    """
    asked = body or PruneBody()
    wish = Wish(asked.groups, asked.everything, asked.older_than_days * DAY)
    return await daemon.prune(wish, dry_run=asked.dry_run, only=asked.only)


@router.get(
    "/metrics",
    operation_id="getMetrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={
        **documented(401),
        200: {"description": "Prometheus text format.", "content": {"text/plain": {"schema": {"type": "string"}}}},
    },
)
async def metrics(request: Request, daemon: Daemon) -> Response:
    """Made from the daemon's views at each scrape. A source that fails is counted in `outrider_scrape_errors`."""
    return Response(await exposition.render(daemon, request.app.version), media_type=exposition.MEDIA_TYPE)
