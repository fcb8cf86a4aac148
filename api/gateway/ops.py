"""The second listener, for operators and load balancers: metrics, health, and readiness per model."""

from __future__ import annotations

from api.gateway.admission import Admission
from api.gateway.asgi import Receive, Scope, Send, answer, answer_json, answer_problem
from api.gateway.guard import Guard
from api.gateway.link import Link
from api.gateway.metrics import CONTENT_TYPE, render


class OpsApp:
    """No client key reaches it, and no client does."""

    def __init__(self, admission: Admission, link: Link, guard: Guard) -> None:
        self._admission = admission
        self._guard = guard
        self._link = link

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        refused = self._guard.refusal(scope["headers"], scope["http_version"])
        if refused is not None:
            await answer_problem(send, refused)
            return
        path: str = scope["path"]
        if scope["method"] not in {"GET", "HEAD"}:
            await answer_json(send, {"error": "only GET and HEAD"}, 405)
        elif path == "/metrics":
            text = render(self._admission, linked=self._link.up)
            await answer(send, 200, [(b"content-type", CONTENT_TYPE)], text.encode())
        elif path == "/healthz":
            await self._health(send)
        elif path.startswith("/ready/"):
            await self._ready(path.removeprefix("/ready/"), send)
        else:
            await answer_json(send, {"error": "/metrics, /healthz, /ready/{model}"}, 404)

    async def _health(self, send: Send) -> None:
        """The gateway is well when it runs: without a daemon it goes on with the table it has, and while it finishes
        its streams before it ends it lives too (whether to send anything here is `/ready/{model}`'s answer)."""
        table = self._admission.table
        document = {
            "status": "stopping" if self._admission.stopping else "ok",
            "daemon": self._link.up,
            "table": self._admission.source,
            "revision": None if table is None else table.revision,
        }
        await answer_json(send, document)

    async def _ready(self, name: str, send: Send) -> None:
        model = self._admission.index.get(name)
        ready = model is not None and bool(model.admitting) and not self._admission.stopping
        route = None if model is None else model.route
        document = {
            "model": name,
            "ready": ready,
            "state": None if route is None else route.state,
            "reason": None if route is None or route.reason is None else route.reason.text,
        }
        await answer_json(send, document, 200 if ready else 503)
