"""/openapi.json: FastAPI's document, with problems instead of its own validation errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from api.control.auth import OPEN_PATHS
from api.control.problems import Problem

TAGS: list[dict[str, Any]] = [
    {"name": "host", "description": "The machine, and the daemon on it."},
    {"name": "models", "description": "What can be deployed, and what would be launched for it."},
    {"name": "images", "description": "What engines run from: pulled, pinned to digests, removed."},
    {"name": "deployments", "description": "What is asked for, what runs, and changing it."},
    {"name": "jobs", "description": "Long calls in progress."},
    {"name": "events", "description": "The journal: every automatic action with its inputs."},
    {"name": "operations", "description": "Configuration, health checks, metrics."},
    {"name": "gateway", "description": "For the gateway only; unix socket only. Answers hold engines' keys."},
]
DESCRIPTION = """\
The control plane of one Outrider host.

Over the unix socket no token is needed: whoever may open it may call. Over TCP every call but `/healthz` needs
`Authorization: Bearer TOKEN`. Errors are `application/problem+json` (RFC 9457) with a stable `code`. Sizes are bytes,
durations seconds, times Unix seconds; unknown is `null`. Streams are server-sent events: `event`, `data` (one line of
JSON), where it helps `id`, and a comment at least every 5 seconds; they end with `end` or with one `error`."""
_OPERATIONS = ("get", "put", "post", "delete", "patch")


def install(app: FastAPI, *, trusted: bool) -> None:
    """Make `app` write its OpenAPI document our way (once, when first asked for)."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = build(app, trusted=trusted)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign] # FastAPI's own documented way


def build(app: FastAPI, *, trusted: bool) -> dict[str, Any]:
    """The document, from the routes as they are; a token is asked for unless `trusted`."""
    schema = get_openapi(title=app.title, version=app.version, description=DESCRIPTION, routes=app.routes, tags=TAGS)
    schemas: dict[str, Any] = schema.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["Problem"] = TypeAdapter(Problem).json_schema(mode="serialization")
    if not trusted:
        schema["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        schema["security"] = [{"token": []}]
    for path, operation in operations(schema):
        unused = operation["responses"].get("422", {})
        if "HTTPValidationError" in str(unused):
            del operation["responses"]["422"]
        if path in OPEN_PATHS and not trusted:
            operation["security"] = []
    return schema


def operations(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(path, operation) of a document."""
    for path, item in schema["paths"].items():
        for method in _OPERATIONS:
            if method in item:
                yield path, item[method]
