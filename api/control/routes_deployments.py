"""Deployments and engines: /deployments, /engines, logs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Annotated

from fastapi import APIRouter, Query, Response

from api.control.deps import Author, Daemon, ModelName, OpenStreams
from api.control.documents import DesiredBody
from api.control.problems import documented, json_bytes
from api.control.sse import EventStream, Message, collect, streamed
from containers.spec import LogLine
from orchestrator.telling.story import Story
from orchestrator.views import DeploymentView, EngineView, PauseView, RoomView

router = APIRouter(prefix="/api/v1", tags=["deployments"])

_CHANGE = documented(400, 401, 404, 409, 413, 415, 503, 504)


@router.get("/deployments", operation_id="listDeployments", summary="All deployments", responses=documented(401))
async def deployments(daemon: Daemon) -> Sequence[DeploymentView]:
    """What is asked for and what is, for each model that has been deployed here."""
    return await daemon.deployments()


@router.get(
    "/deployments/{name}",
    operation_id="getDeployment",
    summary="One deployment",
    responses=documented(400, 401, 404),
)
async def deployment(daemon: Daemon, name: ModelName) -> DeploymentView:
    """By the model's public name or an alias."""
    return await daemon.deployment(name)


@router.put(
    "/deployments/{name}/desired",
    operation_id="setDesired",
    summary="Say what a deployment is to be",
    responses=_CHANGE,
)
async def set_desired(daemon: Daemon, name: ModelName, body: DesiredBody, author: Author = "api") -> DeploymentView:
    """The one verb that writes the desired state. Saying the same again changes nothing."""
    return await daemon.set_desired(name, body.state, author=author, force=body.force)


@router.get(
    "/deployments/{name}/room",
    operation_id="getRoom",
    summary="What would make way",
    responses=documented(400, 401, 404, 409),
)
async def room(daemon: Daemon, name: ModelName) -> RoomView:
    """Which models would be unloaded if this one were started now, and which would not. Changes nothing."""
    return await daemon.room(name)


@router.post(
    "/deployments/{name}/restart",
    operation_id="restartDeployment",
    summary="Stop and start with the same plan",
    responses=_CHANGE,
)
async def restart(daemon: Daemon, name: ModelName, author: Author = "api") -> DeploymentView:
    """A new engine from the plan that is there; `apply` makes a new plan."""
    return await daemon.restart(name, author=author)


@router.post(
    "/deployments/{name}/apply",
    operation_id="applyDeployment",
    summary="Make a new plan and move to it",
    responses=_CHANGE,
)
async def apply(daemon: Daemon, name: ModelName, author: Author = "api") -> DeploymentView:
    """Starts the new engine before the old one stops where both fit. A plan with the same digest changes nothing."""
    return await daemon.apply(name, author=author)


@router.post(
    "/deployments/{name}/drain",
    operation_id="drainDeployment",
    summary="Stop admitting requests",
    responses=_CHANGE,
)
async def drain(daemon: Daemon, name: ModelName, author: Author = "api") -> DeploymentView:
    """Waits for the requests in flight; the engine stays loaded."""
    return await daemon.drain(name, author=author)


@router.get(
    "/deployments/{name}/logs",
    operation_id="getLogs",
    summary="The engine's log",
    response_model=list[LogLine],
    responses=streamed(documented(400, 401, 404), "`event: log` for each line, `event: end` when the engine is gone"),
)
async def logs(
    daemon: Daemon,
    streams: OpenStreams,
    name: ModelName,
    tail: Annotated[int, Query(ge=0, le=10_000, description="How many of the last lines to begin with.")] = 100,
    follow: Annotated[bool, Query(description="Stream, and go on with new lines.")] = False,
) -> Response:
    """Of the engine that serves, or of the last one. A JSON list, or with `follow` server-sent events."""
    known = await daemon.deployment(name)
    lines = daemon.logs(known.deployment, tail=tail, follow=follow)
    if not follow:
        return Response(json_bytes(await collect(lines, tail)), media_type="application/json")
    number = count(1)
    return EventStream(lines, lambda line: Message("log", line, str(next(number))), streams)


@router.get(
    "/deployments/{name}/why",
    operation_id="explainDeployment",
    summary="What happened to a deployment, and what comes next",
    responses=documented(400, 401, 404),
)
async def why(
    daemon: Daemon,
    name: ModelName,
    since_s: Annotated[
        float | None,
        Query(
            ge=0, allow_inf_nan=False, description="So many seconds back; else since it was last started or stopped."
        ),
    ] = None,
) -> Story:
    """Its story, made of the journal: what happened, from which evidence, what was done, what comes next, what a
    person can do. What repeats is told once, with how often."""
    return await daemon.why(name, since_s=since_s)


@router.put("/deployments/{name}/pause", operation_id="pauseDeployment", summary="Keep hands off it", responses=_CHANGE)
async def pause(daemon: Daemon, name: ModelName, author: Author = "api") -> Sequence[PauseView]:
    """Outrider does nothing to it by itself until it is resumed, over restarts of the daemon too. What is asked for is
    done as ever."""
    return await daemon.pause(name, author=author)


@router.delete(
    "/deployments/{name}/pause", operation_id="resumeDeployment", summary="Act on it again", responses=_CHANGE
)
async def resume(daemon: Daemon, name: ModelName, author: Author = "api") -> Sequence[PauseView]:
    """Outrider acts by itself again. Refused while everything is paused."""
    return await daemon.resume(name, author=author)


@router.get("/pauses", operation_id="listPauses", summary="What is paused", responses=documented(401))
async def pauses(daemon: Daemon) -> Sequence[PauseView]:
    """What Outrider keeps its hands off; `deployment` is null for everything."""
    return await daemon.pauses()


@router.put("/pauses", operation_id="pauseEverything", summary="Keep hands off everything", responses=_CHANGE)
async def pause_everything(daemon: Daemon, author: Author = "api") -> Sequence[PauseView]:
    """Outrider does nothing by itself on this host until it is resumed."""
    return await daemon.pause(None, author=author)


@router.delete("/pauses", operation_id="resumeEverything", summary="Act again", responses=_CHANGE)
async def resume_everything(daemon: Daemon, author: Author = "api") -> Sequence[PauseView]:
    """Outrider acts by itself again, on what was paused by itself too."""
    return await daemon.resume(None, author=author)


@router.get("/engines", operation_id="listEngines", summary="All engines", responses=documented(401))
async def engines(daemon: Daemon) -> Sequence[EngineView]:
    """Every container that runs an engine here, with its generation and plan."""
    return await daemon.engines()
