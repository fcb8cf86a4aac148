"""The daemon's door to the gateway, on a unix socket of mode 0600: drain an engine, read the report, health.

`POST /drain {"engine": id, "timeout_s": x}` answers 200 `{"engine", "in_flight": 0}`
once nothing is in flight there, or 504 with the count. With `"revision"`, the daemon's
own at that moment, a table that was under way meanwhile cannot admit again.
"""

from __future__ import annotations

import json
import math

from api.gateway.admission import Admission
from api.gateway.asgi import Receive, Refusal, Scope, Send, answer_json, read_body

LONGEST_BODY = 64 * 1024
LONGEST_WAIT = 86400.0
"""Seconds: no drain waits for more than a day, whatever it is told."""


class DrainApp:
    """Only whoever may open the socket gets here: no key is asked for."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        match scope["method"], scope["path"]:
            case "POST", "/drain":
                await self._drain(scope, receive, send)
            case "GET", "/stats":
                await answer_json(send, self._admission.report())
            case "GET", "/healthz":
                await answer_json(send, {"status": "stopping" if self._admission.stopping else "ok"})
            case _:
                await answer_json(send, {"error": "POST /drain, GET /stats, GET /healthz"}, 404)

    async def _drain(self, scope: Scope, receive: Receive, send: Send) -> None:
        bodies = self._admission.bodies
        body = await read_body(scope, receive, LONGEST_BODY, bodies)
        if body is None:
            return
        if isinstance(body, bytes):
            bodies.give(len(body))
        order = body.reason.message if isinstance(body, Refusal) else _order(body)
        if isinstance(order, str):
            await answer_json(send, {"error": order}, 400)
            return
        engine, timeout_s, revision = order
        in_flight = await self._admission.drain(engine, timeout_s, revision)
        await answer_json(send, {"engine": engine, "in_flight": in_flight}, 504 if in_flight else 200)


def _order(body: bytes) -> tuple[str, float, int | None] | str:
    """(engine, timeout, revision) of a drain request, or what is wrong with it."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return "the body is not JSON"
    if not isinstance(document, dict):
        return "the body is not an object"
    engine, timeout_s, revision = document.get("engine"), document.get("timeout_s"), document.get("revision")
    if not isinstance(engine, str) or not engine:
        return "`engine` has to be an engine's id"
    if isinstance(timeout_s, float) and not math.isfinite(timeout_s):
        timeout_s = None
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float):
        return "`timeout_s` has to be a number of seconds"
    if revision is not None and (not isinstance(revision, int) or isinstance(revision, bool)):
        return "`revision` has to be a whole number"
    return engine, min(max(0.0, timeout_s), LONGEST_WAIT), revision
