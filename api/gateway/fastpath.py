"""The server's protocol class: uvicorn's, with a way past ASGI for the requests that models answer.

A POST to a completion endpoint whose body has arrived whole is relayed by plain calls,
without a task, from the engine's socket to the client's. Everything else, and
everything when uvicorn is not the one this was written for, goes to the ASGI app.

What is touched of uvicorn's insides stands in `_PROTOCOL` and `_CYCLE`, and
`contract_broken` checks it when this module is imported.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import TYPE_CHECKING, ClassVar

import uvicorn
from uvicorn.protocols.http import httptools_impl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from api.gateway import problem
from api.gateway.admission import Admission
from api.gateway.heads import lines
from api.gateway.problem import Problem
from api.gateway.relay import COMPLETIONS, Relay

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

LONGEST_HEAD = 64 * 1024
"""Bytes of a request's head."""

_UVICORN = "0.54."
_PROTOCOL = {
    "_start_asgi_task": ["self", "cycle", "app"],
    "connection_made": ["self", "transport"],
    "connection_lost": ["self", "exc"],
    "data_received": ["self", "data"],
    "on_body": ["self", "body"],
    "on_message_complete": ["self"],
    "on_response_complete": ["self"],
    "pause_writing": ["self"],
    "resume_writing": ["self"],
    "send_400_response": ["self", "msg"],
}
_PROTOCOL_STATE = {"app", "loop", "server_state", "transport", "flow", "cycle"}
_CYCLE_STATE = {
    *("scope", "message_event", "disconnected", "keep_alive", "waiting_for_100_continue"),
    *("body", "more_body", "response_started", "response_complete"),
}


def contract_broken(protocol: type = HttpToolsProtocol, cycle: type = RequestResponseCycle) -> str | None:
    """What uvicorn has changed of the insides that the fast path leans on; None when all is as known."""
    if not uvicorn.__version__.startswith(_UVICORN):
        return f"uvicorn is {uvicorn.__version__}, known is {_UVICORN}x"
    for name, parameters in _PROTOCOL.items():
        method = getattr(protocol, name, None)
        if method is None or list(inspect.signature(method).parameters) != parameters:
            return f"{protocol.__name__}.{name} is not as known"
    for kind, state in ((protocol, _PROTOCOL_STATE), (cycle, _CYCLE_STATE)):
        missing = state - set(kind.__dict__["__init__"].__code__.co_names)
        if missing:
            return f"{kind.__name__} has no {', '.join(sorted(missing))}"
    if not isinstance(getattr(httptools_impl, "STATUS_LINE", None), dict):
        return "httptools_impl has no STATUS_LINE"
    return None


BROKEN = contract_broken()


class CarefulProtocol(HttpToolsProtocol):
    """uvicorn's protocol with a limit on heads, errors in the form clients know, and no task left in the dark."""

    _head_bytes = 0
    _running: RequestResponseCycle | None = None

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        in_body = before is not None and before.more_body
        HttpToolsProtocol.data_received(self, data)
        if self.cycle is not before:
            self._head_bytes = 0
        elif not in_body:
            self._head_bytes += len(data)
            if self._head_bytes > LONGEST_HEAD and not self.transport.is_closing():
                self._refuse(problem.headers_too_large(LONGEST_HEAD))

    def send_400_response(self, msg: str) -> None:
        self._refuse(problem.bad_request())

    def _refuse(self, reason: Problem) -> None:
        """Answer outside of any request and close. In the middle of an answer there is nothing to say."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            body = reason.body()
            head = STATUS_LINE[reason.status] + lines([*reason.headers(), (b"content-length", b"%d" % len(body))])
            self.transport.write(head + b"connection: close\r\n\r\n" + body)
        self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        running = self._running
        if running is not None and running is not self.cycle and not running.response_complete:
            # uvicorn tells only the newest of pipelined requests; the one that runs has to know.
            running.disconnected = True
            running.message_event.set()
        super().connection_lost(exc)


class FastProtocol(CarefulProtocol):
    """`CarefulProtocol` with the way past ASGI, and the responder of its relays. `protocol_for` makes it concrete."""

    admission: ClassVar[Admission]
    _relay: Relay | None = None
    _pending: RequestResponseCycle | None = None
    _answered: RequestResponseCycle
    _chunked = False

    # requests in

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        scope = cycle.scope
        if scope["path"] not in COMPLETIONS or scope["method"] != "POST" or cycle.waiting_for_100_continue:
            super()._start_asgi_task(cycle, app)
            return
        self._pending = cycle
        if not cycle.more_body:  # it waited in the pipeline
            self.loop.call_soon(self._begin, cycle)

    def data_received(self, data: bytes) -> None:
        CarefulProtocol.data_received(self, data)
        cycle = self._pending
        if cycle is not None and _declared(cycle) > self.admission.limits.max_body_bytes:
            self._pending = None
            super()._start_asgi_task(cycle, self.app)  # it knows how to refuse

    def on_body(self, body: bytes) -> None:
        HttpToolsProtocol.on_body(self, body)
        cycle = self._pending
        if cycle is not None and cycle is self.cycle:
            if len(cycle.body) > self.admission.limits.max_body_bytes:
                self._pending = None
                super()._start_asgi_task(cycle, self.app)
            else:
                self.flow.resume_reading()

    def on_message_complete(self) -> None:
        HttpToolsProtocol.on_message_complete(self)
        cycle = self._pending
        if cycle is not None and cycle is self.cycle:
            self._begin(cycle)

    def _begin(self, cycle: RequestResponseCycle) -> None:
        """The request is whole: relay it."""
        if self._pending is not cycle or self.transport.is_closing():
            return
        self._pending = None
        self._answered = cycle
        self._chunked = False
        scope = cycle.scope
        body = bytes(cycle.body)
        cycle.body = bytearray()
        relay = self._relay = Relay(self.admission, self, COMPLETIONS[scope["path"]], scope["headers"], body)
        if self.flow.write_paused:
            relay.pause()
        try:
            relay.start()
        except Exception:
            # A mistake of ours. Raised into the parser's callback it would look like the client's.
            logging.getLogger(__name__).exception("a request could not be relayed")
            self.transport.abort()

    # answers out (`relay.Responder`)

    def begin(self, status: int, head: bytes, length: int | None, data: bytes, *, done: bool) -> None:
        cycle = self._answered
        cycle.response_started = True
        if length is None:
            if done:
                length = len(data)
            else:  # HTTP/1.0 knows no chunks; there the end of the connection, which is never kept, ends the body
                self._chunked = cycle.scope["http_version"] == "1.1"
        framing = b"" if length is None else b"content-length: %d\r\n" % length
        if self._chunked:
            framing = b"transfer-encoding: chunked\r\n"
            data = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
        end = b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n"
        self.transport.write(b"".join((STATUS_LINE[status], self.admission.date, head, framing, end, data)))
        if done:
            self._end(cycle)

    def body(self, data: bytes, *, done: bool) -> None:
        if self._chunked:
            if data:
                data = b"%x\r\n%b\r\n" % (len(data), data)
            if done:
                data += b"0\r\n\r\n"
        if data:
            self.transport.write(data)
        if done:
            self._end(self._answered)

    def cut(self) -> None:
        self._answered.response_complete = True
        self._relay = None
        self.transport.abort()

    def _end(self, cycle: RequestResponseCycle) -> None:
        cycle.response_complete = True
        self._relay = None
        if not cycle.keep_alive:
            self.transport.close()
        self.on_response_complete()

    # the client's doings

    def connection_lost(self, exc: Exception | None) -> None:
        self._pending = None
        super().connection_lost(exc)
        relay = self._relay
        if relay is not None:
            self._relay = None
            relay.client_gone()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._relay is not None:
            self._relay.pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._relay is not None:
            self._relay.resume()


def protocol_for(admission: Admission, *, fast: bool = True) -> type[asyncio.Protocol]:
    """The protocol class for a gateway: fast where uvicorn is as known and it is wanted."""
    if BROKEN is not None or not fast:
        return CarefulProtocol if BROKEN is None else HttpToolsProtocol
    return type("GatewayProtocol", (FastProtocol,), {"admission": admission})


def _declared(cycle: RequestResponseCycle) -> int:
    """The Content-Length, 0 when there is none."""
    for name, value in cycle.scope["headers"]:
        if name == b"content-length":
            return int(value)
    return 0
