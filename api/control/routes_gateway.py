"""For the gateway, over the unix socket only: /gateway/table, /gateway/report.

The table holds the engines' keys. So these routes do not exist on the TCP listener, and on the
unix socket, which an operators' group may open, the guard lets only root, the daemon's own user and
the gateway's user through to them.
"""

from __future__ import annotations

from fastapi import APIRouter, Response

from api.control.deps import Daemon, OpenStreams
from api.control.documents import GatewayReportBody
from api.control.problems import documented
from api.control.sse import EventStream, Message, streamed

router = APIRouter(prefix="/api/v1/gateway", tags=["gateway"])


@router.get(
    "/table",
    operation_id="followRoutingTable",
    summary="The routing table, and each new one",
    response_class=Response,
    responses=streamed(documented(403), "`event: table`, `id` is the table's revision", only=True),
)
async def table(daemon: Daemon, streams: OpenStreams) -> Response:
    """Server-sent events: the present table at once, then each new one."""
    return EventStream(
        daemon.routing_tables(), lambda found: Message("table", found, str(found.get("revision", ""))), streams
    )


@router.post(
    "/report",
    operation_id="reportGateway",
    summary="What the gateway saw",
    status_code=204,
    responses=documented(400, 403, 413, 415),
)
async def report(daemon: Daemon, body: GatewayReportBody) -> None:
    """Counters since the gateway started; the daemon takes differences."""
    await daemon.gateway_report(body.model_dump())
