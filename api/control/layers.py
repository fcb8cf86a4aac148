"""What happens around the routes: the body's size and time, the last net for defects, a line in the log."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.control.problems import Problem, ProblemResponse, internal, problem

log = logging.getLogger("outrider.api")

BODY_LIMIT = 1024 * 1024
"""Bytes. The largest legal call, a model entry with many variants, takes a few KiB."""
BODY_TIME = 30.0
"""Seconds for the whole body."""
_NO_BODY = frozenset({"GET", "HEAD", "OPTIONS"})


class Bodies:
    """ASGI middleware: reads a write's whole body, within a size and a time, before the route sees it."""

    def __init__(self, app: ASGIApp, *, limit: int = BODY_LIMIT, seconds: float = BODY_TIME) -> None:
        self._app = app
        self._limit = limit
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on with a body that is in memory, or refuse with 413 or 408."""
        if scope["method"] in _NO_BODY:
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > self._limit:
            await ProblemResponse(self._too_large())(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._seconds):
                body = await self._read(receive)
        except TimeoutError:
            slow = problem(408, "body_timeout", f"the body did not arrive within {self._seconds:.0f} s", retryable=True)
            await ProblemResponse(slow, {"connection": "close"})(scope, receive, send)
            return
        if isinstance(body, Problem):
            await ProblemResponse(body)(scope, receive, send)
        elif body is not None:
            await self._app(scope, _replay(body, receive), send)

    async def _read(self, receive: Receive) -> bytes | Problem | None:
        """The body; a problem when it grows too large; None when the client left."""
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            part: bytes = message.get("body", b"")
            size += len(part)
            if size > self._limit:
                return self._too_large()
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)

    def _too_large(self) -> Problem:
        return problem(
            413,
            "body_too_large",
            f"the body is larger than {self._limit} bytes",
            hint="weights are never uploaded: name a file or a repository",
            evidence={"limit_bytes": self._limit},
        )


def _replay(body: bytes, receive: Receive) -> Receive:
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


class Faults:
    """The outermost ASGI middleware: a defect becomes a 500 problem, and each request a line at debug."""

    def __init__(self, app: ASGIApp, *, listener: str) -> None:
        self._app = app
        self._listener = listener

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request; nothing but a response leaves here."""
        if scope["type"] != "http":
            return
        started: int | None = None
        begun = time.monotonic()

        async def noting(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except asyncio.CancelledError:  # the server stops and its limit is reached; the task ends here either way
            stopping = problem(503, "stopping", "the daemon is stopping", retryable=True)
            if started is None:
                await ProblemResponse(stopping, {"connection": "close"})(scope, receive, noting)
        except Exception:
            instance = f"urn:outrider:request:{secrets.token_hex(8)}"
            log.exception("%s %s failed (%s)", scope["method"], scope["path"], instance)
            if started is not None:
                raise  # half an answer went out: only closing the connection tells the client
            await ProblemResponse(internal(instance))(scope, receive, noting)
        finally:
            if log.isEnabledFor(logging.DEBUG):
                took = (time.monotonic() - begun) * 1000
                log.debug("%s %s %s %s %.1f ms", self._listener, scope["method"], scope["path"], started, took)
