"""uvicorn's HTTP protocol class with what a public server needs besides: limits, deadlines, and errors in JSON.

What is touched of uvicorn's insides, here and in `fastpath`, stands in `_PROTOCOL`, `_CYCLE` and
their states; `contract_broken` checks it when this module is imported.
"""

from __future__ import annotations

import fcntl
import inspect
import struct
import termios
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

import httptools
import uvicorn
from uvicorn.protocols.http import httptools_impl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from api.gateway import problem
from api.gateway.admission import Limits
from api.gateway.heads import lines
from api.gateway.problem import Problem

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

LONGEST_HEAD = 64 * 1024
"""Bytes of a request's head, and of whatever frames its body without being body."""
MOST_PIPELINED = 64
"""Requests of one connection that wait behind the one being answered."""

_UVICORN = "0.54."
_PROTOCOL = {
    "_start_asgi_task": ["self", "cycle", "app"],
    "connection_made": ["self", "transport"],
    "connection_lost": ["self", "exc"],
    "data_received": ["self", "data"],
    "on_message_begin": ["self"],
    "on_headers_complete": ["self"],
    "on_body": ["self", "body"],
    "on_message_complete": ["self"],
    "on_response_complete": ["self"],
    "pause_writing": ["self"],
    "resume_writing": ["self"],
}
_PROTOCOL_STATE = {"app", "loop", "server_state", "transport", "flow", "cycle", "parser", "pipeline", "headers"}
_CYCLE = [
    *("self", "scope", "transport", "flow", "logger", "access_logger", "access_log", "default_headers"),
    *("message_event", "expect_100_continue", "keep_alive", "on_response"),
]
_CYCLE_STATE = {
    *("scope", "message_event", "disconnected", "keep_alive", "waiting_for_100_continue"),
    *("body", "more_body", "response_started", "response_complete"),
}


def contract_broken(protocol: type = HttpToolsProtocol, cycle: type = RequestResponseCycle) -> str | None:
    """What uvicorn has changed of the insides that are leaned on here; None when all is as known."""
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
    if list(inspect.signature(cycle.__init__).parameters) != _CYCLE:  # type: ignore[misc]
        return f"{cycle.__name__} is made of other things"
    if not isinstance(getattr(httptools_impl, "STATUS_LINE", None), dict):
        return "httptools_impl has no STATUS_LINE"
    return None


BROKEN = contract_broken()


class _TooManyRequests(Exception):
    """Raised into the parser, which stops there."""


class _Stage(Enum):
    """What a client connection is at."""

    NEW = "new"
    """Open, and nothing came yet."""
    HEAD = "head"
    BODY = "body"
    BUSY = "busy"
    """A request is being answered."""
    IDLE = "idle"


class CarefulProtocol(HttpToolsProtocol):
    """A client connection. `check` is called about once a second and keeps all its deadlines: no timer a request."""

    limits: ClassVar[Limits]
    _running: RequestResponseCycle | None = None
    _overhead = 0
    """Bytes received since the last that were body, or ended a head."""
    received = 0
    """Bytes, since the connection was made."""
    _in_body = False
    """Whether the data at hand held some of a body."""
    _other_protocol = False
    _stage: tuple[_Stage, RequestResponseCycle | None] | None = None
    _since = 0.0
    _before = 0
    _unsent: int | None = None
    _unsent_since = 0.0

    # what comes in

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        self.received += len(data)
        self._in_body = False
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = self._without_upgrade(data[upgrade.args[0] :])
                if data:
                    continue
                self._refuse(problem.bad_request())
            except httptools.HttpParserError:
                self._refuse(problem.bad_request())
            break
        if self._in_body or self.cycle is not before:
            self._overhead = 0
            return
        self._overhead += len(data)
        if self._overhead > LONGEST_HEAD:
            self._refuse(problem.headers_too_large(LONGEST_HEAD))

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            self._other_protocol = True  # the parser ends here, and `data_received` goes on
            return
        if len(self.pipeline) >= MOST_PIPELINED:
            raise _TooManyRequests
        super().on_headers_complete()
        self.headers = []  # trailers are read into here, and are nobody's headers

    def on_body(self, body: bytes) -> None:
        self._in_body = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._other_protocol:
            super().on_message_complete()

    def _without_upgrade(self, rest: bytes) -> bytes:
        """A request that offers another protocol, and what came after its head, as if it offered none.

        Java's client offers HTTP/2 with each request; the parser takes the body for that
        protocol's. Empty for CONNECT, which has no meaning here.
        """
        self._other_protocol = False
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        if method == b"CONNECT":
            return b""
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        kept = lines(pair for pair in self.headers if pair[0] not in {b"upgrade", b"http2-settings"})
        return b"%b %b HTTP/%b\r\n%b\r\n%b" % (method, self.url, version, kept, rest)

    def _refuse(self, reason: Problem) -> None:
        """Answer what cannot be read, and close.

        Nothing is said in the middle of an answer, nor to who waits for another one.
        """
        if self.transport.is_closing():
            return
        cycle = self.cycle
        unread = cycle is not None and cycle is self._running and cycle.more_body and not cycle.response_started
        if cycle is None or cycle.response_complete or unread:
            if cycle is not None and unread:
                cycle.disconnected = True  # whatever the app still says of it is not for the wire
                cycle.message_event.set()
            body = reason.body()
            head = STATUS_LINE[reason.status] + lines([*reason.headers(), (b"content-length", b"%d" % len(body))])
            self.transport.write(head + b"connection: close\r\n\r\n" + body)
        self.transport.close()

    # requests in their order

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """As uvicorn's, without its timer for idle connections: `check` is that."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())

    def connection_lost(self, exc: Exception | None) -> None:
        running = self._running
        if running is not None and running is not self.cycle and not running.response_complete:
            # uvicorn tells only the newest of pipelined requests; the one that runs has to know.
            running.disconnected = True
            running.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)

    # deadlines

    def check(self, now: float) -> None:
        """End the connection if its client takes too long. `now`: monotonic seconds."""
        if self._is_unread(now):
            self.transport.abort()
            return
        if self.transport.is_closing():
            return
        stage = self._what()
        if stage != self._stage or self.flow.read_paused:
            self._stage, self._since, self._before = stage, now, self.received
            return
        limit = self._limit(stage[0])
        if limit is None or now - self._since <= limit:
            return
        if stage[0] in (_Stage.IDLE, _Stage.NEW):
            self.transport.close()
        else:
            self._refuse(problem.too_slow(limit))

    def _limit(self, stage: _Stage) -> float | None:
        """Seconds that the client may take."""
        limits = self.limits
        match stage:
            case _Stage.IDLE:
                return limits.keep_alive_s
            case _Stage.NEW | _Stage.HEAD:
                return limits.read_s
            case _Stage.BODY:
                return limits.read_s + (self.received - self._before) / limits.least_rate
            case _Stage.BUSY:
                return None

    def _what(self) -> tuple[_Stage, RequestResponseCycle | None]:
        """What the connection is at; the cycle tells one time from the next."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            return (_Stage.BODY if cycle.more_body else _Stage.BUSY), cycle
        if self._overhead:
            return _Stage.HEAD, cycle
        return (_Stage.NEW if cycle is None else _Stage.IDLE), cycle

    def _is_unread(self, now: float) -> bool:
        """Whether an answer has been waiting too long for a client that takes nothing of it."""
        if not (self.flow.write_paused or self.transport.is_closing()):
            self._unsent = None
            return False
        unsent = self.transport.get_write_buffer_size() + _in_kernel(self.transport.get_extra_info("socket"))
        if unsent != self._unsent:
            self._unsent, self._unsent_since = unsent, now
            return False
        return now - self._unsent_since > self.limits.unread_s


def _in_kernel(sock: object) -> int:
    """Bytes that the kernel holds for the other end."""
    number = getattr(sock, "fileno", lambda: -1)()
    if number < 0:
        return 0
    try:
        (size,) = struct.unpack("i", fcntl.ioctl(number, termios.TIOCOUTQ, b"\0" * 4))
    except OSError:  # it is being closed
        return 0
    return int(size)
