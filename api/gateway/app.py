"""The gateway's ASGI app: the model list, every error, and completions where the fast path does not take them."""

from __future__ import annotations

from api.gateway import problem
from api.gateway.admission import Admission, Model
from api.gateway.asgi import (
    AsgiResponder,
    Receive,
    Refusal,
    Scope,
    Send,
    answer_json,
    answer_problem,
    read_body,
    refuse_body,
)
from api.gateway.guard import Guard
from api.gateway.relay import COMPLETIONS, Relay

MODELS = "/v1/models"


class GatewayApp:
    """The data plane's HTTP face. Nothing but what stands here can be reached of an engine."""

    def __init__(self, admission: Admission, guard: Guard) -> None:
        self._admission = admission
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        refused = self._guard.refusal(scope["headers"], scope["http_version"])
        if refused is not None:
            await refuse_body(scope, receive, send, Refusal(refused))
            return
        path: str = scope["path"]
        method: str = scope["method"]
        if path in COMPLETIONS:
            if method == "POST":
                await self._complete(scope, receive, send)
            else:
                await answer_problem(send, problem.wrong_method(method, path, "POST"))
        elif path == MODELS or path.startswith(MODELS + "/"):
            if method in {"GET", "HEAD"}:
                await self._models(path[len(MODELS) + 1 :], send)
            else:
                await answer_problem(send, problem.wrong_method(method, path, "GET, HEAD"))
        else:
            await answer_problem(send, problem.no_such_path(path))

    async def _models(self, name: str, send: Send) -> None:
        if not name:
            data = [describe(model) for model in self._admission.models()]
            await answer_json(send, {"object": "list", "data": data})
            return
        model = self._admission.index.get(name)
        if model is None:
            known = [item.name for item in self._admission.models()]
            await answer_problem(send, problem.model_not_found(name, known))
        else:
            await answer_json(send, describe(model))

    async def _complete(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(scope, receive, self._admission.limits.max_body_bytes, self._admission.bodies)
        if body is None:
            return
        if isinstance(body, Refusal):
            await refuse_body(scope, receive, send, body)
            return
        responder = AsgiResponder()
        relay = Relay(self._admission, responder, COMPLETIONS[scope["path"]], scope["headers"], body)
        await responder.run(relay, receive, send)


def describe(model: Model) -> dict[str, object]:
    """One entry of the model list. `created` is when this gateway first heard of the model."""
    route = model.route
    assert route is not None
    return {
        "id": model.name,
        "object": "model",
        "created": int(model.first_seen),
        "owned_by": "outrider",
        "aliases": list(route.aliases),
        "state": route.state,
    }
