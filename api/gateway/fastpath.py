"""The way past ASGI for the requests that models answer.

A POST to a completion endpoint whose body has arrived whole is relayed by plain calls,
without a task, from the engine's socket to the client's. Everything else, and
everything when uvicorn is not the one this was written for, goes to the ASGI app.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, ClassVar

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from api.gateway.admission import Admission
from api.gateway.asgi import NO_BODY
from api.gateway.guard import Guard
from api.gateway.protocol import BROKEN, CarefulProtocol
from api.gateway.relay import COMPLETIONS, Relay

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application


COMPLETIONS_BY_URL = {path.encode(): path for path in COMPLETIONS}


class _NobodyWaits(asyncio.Event):
    """In place of the event that tells an ASGI app of more: a relay is called."""

    def set(self) -> None:
        """Say it to nobody."""


_NOBODY_WAITS = _NobodyWaits()


class FastProtocol(CarefulProtocol):
    """`CarefulProtocol` with the way past ASGI, and the responder of its relays. `protocol_for` makes it concrete."""

    admission: ClassVar[Admission]
    guard: ClassVar[Guard]
    _relay: Relay | None = None
    _pending: RequestResponseCycle | None = None
    """The request whose body is still arriving here; what it holds is counted in `admission.bodies`."""
    _answered: RequestResponseCycle
    _chunked = False

    # requests in

    def on_message_begin(self) -> None:
        """The scope comes with the head's end, when it is known how much of one is needed."""
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def on_headers_complete(self) -> None:
        parser, last = self.parser, self.cycle
        idle = last is None or last.response_complete
        if self.url in COMPLETIONS_BY_URL and idle and not parser.should_upgrade() and parser.get_method() == b"POST":
            self._hot_request()
            return
        url, headers, expect = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.headers, self.expect_100_continue = url, headers, expect
        self.scope["headers"] = headers
        super().on_headers_complete()

    def _hot_request(self) -> None:
        """What uvicorn does at the end of a head, but for what a relay has no use for (2 us of 13)."""
        version = self.parser.get_http_version()
        self.scope = scope = {  # type: ignore[assignment]
            "type": "http",
            "method": "POST",
            "path": COMPLETIONS_BY_URL[self.url],
            "http_version": version,
            "headers": self.headers,
        }
        self.headers = []
        self.cycle = cycle = RequestResponseCycle(
            scope,  # type: ignore[arg-type]
            self.transport,
            self.flow,
            self.logger,
            self.access_logger,
            False,
            self.server_state.default_headers,
            _NOBODY_WAITS,
            self.expect_100_continue,
            version == "1.1" and self.parser.should_keep_alive(),
            self.on_response_complete,
        )
        self._start_asgi_task(cycle, self.app)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        if not self._is_ours(cycle):
            self._to_app(cycle)  # it knows how to refuse, too
            return
        if not self.admission.bodies.take(len(cycle.body)):  # it waited in the pipeline
            self._to_app(cycle)
            return
        self._running = self._pending = cycle
        if not cycle.more_body:
            self.loop.call_soon(self._begin, cycle)

    def _is_ours(self, cycle: RequestResponseCycle) -> bool:
        scope = cycle.scope
        if scope["path"] not in COMPLETIONS or scope["method"] != "POST" or cycle.waiting_for_100_continue:
            return False
        headers: Any = scope["headers"]  # a list, whatever ASGI says
        fields = dict(headers)
        if self.guard.refusal(headers, scope["http_version"], fields) is not None:
            return False
        return int(fields.get(b"content-length", 0)) <= self.admission.limits.max_body_bytes

    def _to_app(self, cycle: RequestResponseCycle) -> None:
        if cycle.message_event is _NOBODY_WAITS:
            cycle.message_event = asyncio.Event()
        super()._start_asgi_task(cycle, self.app)

    def on_body(self, body: bytes) -> None:
        cycle = self._pending
        if cycle is None or cycle is not self.cycle:
            super().on_body(body)
            return
        self._in_body = True
        cycle.body += body
        if len(cycle.body) > self.admission.limits.max_body_bytes or not self.admission.bodies.take(len(body)):
            self._give_up(cycle, len(cycle.body) - len(body))

    def _give_up(self, cycle: RequestResponseCycle, held: int) -> None:
        """Leave a body that is too much to the ASGI app, which counts anew."""
        self._pending = None
        self.admission.bodies.give(held)
        self._to_app(cycle)

    def on_message_complete(self) -> None:
        cycle = self._pending
        if cycle is None or cycle is not self.cycle:
            super().on_message_complete()
            return
        cycle.more_body = False
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
        framing = b"" if length is None or status in NO_BODY else b"content-length: %d\r\n" % length
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
        if self._pending is not None:
            self.admission.bodies.give(len(self._pending.body))
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


def protocol_for(admission: Admission, guard: Guard | None = None) -> type[asyncio.Protocol]:
    """The protocol class for a listener: fast with a `guard`, where uvicorn is as known."""
    if BROKEN is not None:
        return HttpToolsProtocol
    if guard is None:
        return type("GatewayProtocol", (CarefulProtocol,), {"limits": admission.limits})
    state = {"limits": admission.limits, "admission": admission, "guard": guard}
    return type("GatewayProtocol", (FastProtocol,), state)
