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
from api.gateway.heads import Tags, lines
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


class RawResponder:
    """Writes an answer onto a connection of uvicorn's."""

    __slots__ = ("_chunked", "_cycle", "_protocol", "relay")

    def __init__(self, protocol: FastProtocol, cycle: RequestResponseCycle) -> None:
        self._protocol = protocol
        self._cycle = cycle
        self._chunked = False

    def begin(
        self,
        status: int,
        headers: list[tuple[bytes, bytes]],
        tags: Tags | None,
        length: int | None,
        data: bytes,
        *,
        done: bool,
    ) -> None:
        cycle = self._cycle
        cycle.response_started = True
        if length is None and done:
            length = len(data)
        parts = [STATUS_LINE[status], lines(self._protocol.server_state.default_headers), lines(headers)]
        if tags is not None:
            parts.append(tags.lines)
        if length is not None:
            parts.append(b"content-length: %d\r\n" % length)
        elif cycle.scope["http_version"] == "1.1":
            self._chunked = True
            parts.append(b"transfer-encoding: chunked\r\n")
        else:
            cycle.keep_alive = False
        parts.append(b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n")
        if data:
            parts.append(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
        if done:
            self._end(b"".join(parts))
        else:
            self._protocol.transport.write(b"".join(parts))

    def body(self, data: bytes, *, done: bool) -> None:
        if self._chunked:
            if data:
                data = b"%x\r\n%b\r\n" % (len(data), data)
            if done:
                data += b"0\r\n\r\n"
        if done:
            self._end(data)
        elif data:
            self._protocol.transport.write(data)

    def cut(self) -> None:
        self._cycle.response_complete = True
        self._protocol.relay = None
        self._protocol.transport.abort()

    def _end(self, data: bytes) -> None:
        protocol, cycle = self._protocol, self._cycle
        protocol.transport.write(data)
        cycle.response_complete = True
        protocol.relay = None
        if not cycle.keep_alive:
            protocol.transport.close()
        protocol.on_response_complete()


class CarefulProtocol(HttpToolsProtocol):
    """uvicorn's protocol with a limit on heads, errors in the form clients know, and no task left in the dark."""

    _head_bytes = 0
    _running: RequestResponseCycle | None = None

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        in_body = before is not None and before.more_body
        super().data_received(data)
        if self.cycle is before and not in_body:
            self._head_bytes += len(data)
            if self._head_bytes > LONGEST_HEAD and not self.transport.is_closing():
                self._refuse(problem.headers_too_large(LONGEST_HEAD))
        else:
            self._head_bytes = 0

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
    """`CarefulProtocol` with the way past ASGI. Made for one gateway by `protocol_for`."""

    admission: ClassVar[Admission]
    relay: Relay | None = None
    _pending: RequestResponseCycle | None = None

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        scope = cycle.scope
        if scope["path"] not in COMPLETIONS or scope["method"] != "POST" or cycle.waiting_for_100_continue:
            super()._start_asgi_task(cycle, app)
            return
        self._pending = cycle
        if not cycle.more_body:  # it waited in the pipeline
            self.loop.call_soon(self._relay, cycle)

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        cycle = self._pending
        if cycle is not None and cycle is self.cycle:
            if len(cycle.body) > self.admission.limits.max_body_bytes:
                self._pending = None
                super()._start_asgi_task(cycle, self.app)  # it knows how to refuse
            else:
                self.flow.resume_reading()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        cycle = self._pending
        if cycle is not None and _declared(cycle) > self.admission.limits.max_body_bytes:
            self._pending = None
            super()._start_asgi_task(cycle, self.app)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        cycle = self._pending
        if cycle is not None and cycle is self.cycle:
            self._relay(cycle)

    def _relay(self, cycle: RequestResponseCycle) -> None:
        if self._pending is not cycle or self.transport.is_closing():
            return
        self._pending = None
        scope = cycle.scope
        body = bytes(cycle.body)
        cycle.body = bytearray()
        relay = Relay(self.admission, RawResponder(self, cycle), COMPLETIONS[scope["path"]], scope["headers"], body)
        self.relay = relay
        if self.flow.write_paused:
            relay.pause()
        try:
            relay.start()
        except Exception:
            # A mistake of ours. Raised into the parser's callback it would look like the client's.
            logging.getLogger(__name__).exception("a request could not be relayed")
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._pending = None
        super().connection_lost(exc)
        relay = self.relay
        if relay is not None:
            self.relay = None
            relay.client_gone()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.relay is not None:
            self.relay.pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.relay is not None:
            self.relay.resume()


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
