"""The journal: /events."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Response

from api.control.deps import Daemon, OpenStreams
from api.control.problems import documented, json_bytes
from api.control.sse import EventStream, Message, collect, streamed
from orchestrator.views import Event

router = APIRouter(prefix="/api/v1", tags=["events"])

PAGE = 1000
LARGEST_PAGE = 10_000


@router.get(
    "/events",
    operation_id="listEvents",
    summary="What happened, and what happens",
    response_model=list[Event],
    responses=streamed(documented(400, 401), "`event: event` for each entry, `id` is its sequence"),
)
async def events(  # noqa: PLR0917 - FastAPI passes them by name
    daemon: Daemon,
    streams: OpenStreams,
    since: Annotated[int, Query(ge=0, description="Only entries with a sequence above this one.")] = 0,
    follow: Annotated[bool, Query(description="Stream, and go on with new entries.")] = False,
    deployment: Annotated[
        str | None, Query(min_length=1, max_length=256, description="Only entries about this deployment.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=LARGEST_PAGE, description="The longest list (not for `follow`).")] = PAGE,
    last_event_id: Annotated[
        str | None,
        Header(alias="Last-Event-ID", pattern=r"^[0-9]{1,18}$", description="Where a broken stream goes on."),
    ] = None,
) -> Response:
    """Oldest first: a JSON list, or with `follow` server-sent events. A list that was cut at `limit` has a
    `Link: <...>; rel="next"` header."""
    if follow:
        after = max(since, int(last_event_id or 0))
        entries = daemon.events(since=after, follow=True, deployment=deployment)
        return EventStream(entries, lambda entry: Message("event", entry, str(entry.sequence)), streams)
    found = await collect(daemon.events(since=since, deployment=deployment), limit + 1)
    response = Response(media_type="application/json")
    if len(found) > limit:
        found.pop()
        subject = "" if deployment is None else f"&deployment={deployment}"
        response.headers["link"] = f'</api/v1/events?since={found[-1].sequence}&limit={limit}{subject}>; rel="next"'
    response.body = json_bytes(found)
    response.headers["content-length"] = str(len(response.body))
    return response
