"""Errors as OpenAI clients expect them: `{"error": {"message", "type", "param", "code"}}`, a body or an SSE event."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass

from api.gateway.table import Reason

_FOLDERS = re.compile(r"(?<![\w.:/])/(?:[^\s/:;,]+/)+")
JSON = (b"content-type", b"application/json")


@dataclass(frozen=True, slots=True)
class Problem:
    """One error answer. `code` is stable: programs match on it. `retry_after` is in seconds."""

    status: int
    code: str
    message: str
    param: str | None = None
    retry_after: float | None = None
    allow: str | None = None

    def document(self) -> dict[str, object]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def body(self) -> bytes:
        return json.dumps(self.document()).encode()

    def event(self) -> bytes:
        """The same as one SSE event: what a stream that has begun ends with (never followed by `[DONE]`)."""
        return b"data: " + self.body() + b"\n\n"

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Everything but the length."""
        found = [JSON]
        if self.retry_after is not None:
            found.append((b"retry-after", str(max(1, math.ceil(self.retry_after))).encode()))
        if self.allow is not None:
            found.append((b"allow", self.allow.encode()))
        return found


ROUTES = "POST /v1/chat/completions, POST /v1/completions, GET /v1/models, GET /v1/models/{model}"


def no_such_path(path: str) -> Problem:
    return Problem(404, "unknown_url", f"there is no {path[:200]} here; this gateway serves {ROUTES}")


def wrong_method(method: str, path: str, allow: str) -> Problem:
    return Problem(
        405, "method_not_allowed", f"{path} does not take {method}; use {allow.split(',', maxsplit=1)[0]}", allow=allow
    )


def invalid_json(detail: str) -> Problem:
    return Problem(400, "invalid_json", f"the request body is not JSON in UTF-8: {detail}")


def no_model() -> Problem:
    return Problem(
        400,
        "missing_required_parameter",
        "the request names no model; add one to the body, GET /v1/models lists them",
        "model",
    )


def model_not_text() -> Problem:
    return Problem(400, "invalid_type", "`model` has to be a text; GET /v1/models lists the models", "model")


def model_not_found(name: str, known: list[str]) -> Problem:
    there = ", ".join(known[:50]) if known else "none yet; is the daemon running? (outrider ps)"
    if len(known) > 50:
        there += f" and {len(known) - 50} more (GET /v1/models)"
    return Problem(404, "model_not_found", f"the model {name[:200]!r} does not exist; models here: {there}", "model")


def too_large(limit: int) -> Problem:
    return Problem(413, "request_too_large", f"the request body is over the limit of {limit} bytes (max_body_bytes)")


def too_intricate(limit: int) -> Problem:
    return Problem(
        400, "request_too_intricate", f"the request body has more than {limit} lists, objects and items; send fewer"
    )


def bodies_full(limit: int) -> Problem:
    return Problem(
        503,
        "bodies_full",
        f"the requests that are held already come to {limit} bytes together; try again when some are answered",
        retry_after=5.0,
    )


def too_slow(seconds: float) -> Problem:
    return Problem(408, "request_timeout", f"the request did not arrive within {seconds:g} s")


def exhausted(detail: str) -> Problem:
    return Problem(503, "gateway_exhausted", f"the gateway cannot open a connection ({detail})", retry_after=5.0)


def too_many_connections(limit: int) -> Problem:
    return Problem(503, "too_many_connections", f"{limit} connections are open already", retry_after=5.0)


def host_missing(count: int) -> Problem:
    how = "no Host header" if count == 0 else f"{count} Host headers"
    return Problem(400, "invalid_host", f"the request has {how}; HTTP/1.1 asks for one")


def foreign_host(listen: str) -> Problem:
    return Problem(
        421,
        "foreign_host",
        f"this gateway listens on {listen} and answers to localhost, 127.0.0.1 and [::1] only, so that no web page "
        "can reach it under a name of its own; a proxy in front has to send one of these as Host",
    )


def foreign_origin(listen: str) -> Problem:
    return Problem(
        403,
        "foreign_origin",
        f"this gateway listens on {listen} and takes no requests from web pages of other hosts",
    )


def headers_too_large(limit: int) -> Problem:
    return Problem(431, "headers_too_large", f"the request's headers are over the limit of {limit} bytes")


def bad_request() -> Problem:
    return Problem(400, "invalid_http", "this is not an HTTP/1.1 request")


def queue_full(model: str, limit: int, retry_after: float) -> Problem:
    return Problem(
        503,
        "queue_full",
        f"{limit} {'request waits' if limit == 1 else 'requests wait'} for {model} already;"
        f" try again in {math.ceil(retry_after)} s",
        retry_after=retry_after,
    )


def hold_timeout(model: str, waited: float, reason: Reason | None, retry_after: float) -> Problem:
    why = "" if reason is None else f": {_told(reason)}"
    return Problem(
        503, "hold_timeout", f"no engine for {model} became ready within {waited:g} s{why}", retry_after=retry_after
    )


def not_serving(model: str, state: str, reason: Reason | None, retry_after: float) -> Problem:
    if reason is not None:
        why = _told(reason)
    else:
        why = f"it is {state}" + (f"; next: `outrider start {model}`" if state == "stopped" else "")
    return Problem(
        503,
        "model_not_ready",
        f"no engine serves {model} now: {why} (`outrider why {model}` tells more)",
        retry_after=retry_after,
    )


def _told(reason: Reason) -> str:
    """What is in the way, under the name that programs know, and what to do about it. Files are named without their
    folders: those are the host's own business."""
    code = f" [{reason.code}]" if reason.code else ""
    return f"{_FOLDERS.sub('', reason.text)}{code}" + (f"; next: {reason.hint}" if reason.hint else "")


def shutting_down() -> Problem:
    return Problem(503, "shutting_down", "the gateway is stopping; try again", retry_after=2.0)


def upstream_failed(model: str, detail: str) -> Problem:
    return Problem(502, "upstream_failed", f"the engine of {model} did not answer: {detail}", retry_after=2.0)


def upstream_lost(model: str, detail: str) -> Problem:
    return Problem(
        502, "upstream_lost", f"the engine of {model} was lost in the middle of the answer ({detail}); ask again"
    )


def internal() -> Problem:
    return Problem(500, "internal", "the gateway failed to answer; its log says why")
