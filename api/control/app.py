"""The control API as an ASGI application: one for the unix socket, one for TCP, around the same daemon."""

from __future__ import annotations

from collections.abc import Collection

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from api.control import (
    openapi,
    routes_deployments,
    routes_events,
    routes_gateway,
    routes_host,
    routes_images,
    routes_jobs,
    routes_models,
    routes_ops,
)
from api.control.auth import Guard
from api.control.layers import BODY_LIMIT, BODY_TIME, Bodies, Faults
from api.control.problems import ProblemResponse, from_error, from_validation, problem
from api.control.sse import Streams
from orchestrator.errors import OutriderError
from orchestrator.facade import Facade


def create_app(
    facade: Facade,
    *,
    version: str,
    trusted: bool,
    token_digest: bytes | None = None,
    gateway_uids: Collection[int] = (),
    streams: Streams | None = None,
    body_limit: int = BODY_LIMIT,
    body_time: float = BODY_TIME,
) -> FastAPI:
    """The application for one listener.

    `trusted` is the unix socket: no token, and the gateway's routes exist (for `gateway_uids`).
    Otherwise `token_digest`, the SHA-256 of the token, is needed. `streams.closing` ends all open
    event streams. Raises ValueError for a TCP application without a token.
    """
    app = FastAPI(
        title="Outrider control API",
        version=version,
        docs_url=None,  # its pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        separate_input_output_schemas=False,
    )
    app.state.facade = facade
    app.state.streams = streams or Streams()
    for router in (
        routes_host.router,
        routes_host.open_router,
        routes_images.router,
        routes_models.router,
        routes_deployments.router,
        routes_jobs.router,
        routes_events.router,
        routes_ops.router,
    ):
        app.include_router(router)
    if trusted:
        app.include_router(routes_gateway.router)
    app.add_exception_handler(OutriderError, _outrider_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_middleware(Bodies, limit=body_limit, seconds=body_time)
    app.add_middleware(Guard, trusted=trusted, token_digest=token_digest, gateway_uids=gateway_uids)
    app.add_middleware(Faults, listener="unix" if trusted else "tcp")  # the last one added is the outermost
    openapi.install(app, trusted=trusted)
    return app


async def _outrider_error(request: Request, error: Exception) -> ProblemResponse:
    assert isinstance(error, OutriderError)
    return ProblemResponse(from_error(error))


async def _validation_error(request: Request, error: Exception) -> ProblemResponse:
    assert isinstance(error, RequestValidationError)
    return ProblemResponse(from_validation(error.errors()))


async def _http_error(request: Request, error: Exception) -> ProblemResponse:
    """The router's own refusals, and FastAPI's of a body that cannot be parsed."""
    assert isinstance(error, HTTPException)
    match error.status_code:
        case 404:
            what = problem(404, "no_such_route", "there is nothing at this path", hint="see /openapi.json")
        case 405:
            what = problem(405, "method_not_allowed", "this path does not take this method", hint="see `Allow`")
        case other if other < 500:
            what = problem(other, "usage", str(error.detail))
        case other:
            what = problem(other, "internal", "the daemon failed to answer")
    return ProblemResponse(what, error.headers)
