"""One request for a model, from its body to the last byte of its answer: a state machine of plain calls.

It knows nothing of the server in front: a `Responder` carries its answer, and tells
it of a client that leaves or reads slowly. States: new -> (waiting ->) sent -> started
-> over. The rules:

- before the first byte, a lost engine is replaced by another, once; after it, never;
- a *reused* connection that dies before the first byte is replaced by a fresh one, once;
- a stream that has begun ends with one SSE error event and no `[DONE]`;
- a client that leaves closes the connection to the engine, whatever the state.
"""

from __future__ import annotations

import json
import time
from enum import Enum
from typing import Protocol

from api.gateway import body as request_body
from api.gateway import problem
from api.gateway.admission import Admission, Engine, Model
from api.gateway.flights import Flight, answer_tokens
from api.gateway.heads import Headers, lines, request_head, response_head
from api.gateway.problem import Problem
from api.gateway.upstream import OURS, Connection

COMPLETIONS = {"/v1/chat/completions": b"/v1/chat/completions", "/v1/completions": b"/v1/completions"}
"""The paths that are relayed: as a client asks for them, and as an engine is asked."""
LONGEST_HEAD = 64 * 1024
"""Bytes of a client's headers."""
TRY_ELSEWHERE = frozenset((502, 503, 504))
"""Answers of an engine that another one may do better."""
EVENT_STREAM = b"content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
NOT_READ = -1
"""In the place of an answer's length that nobody looked for yet."""
LONGEST_ERROR = 64 * 1024
"""Bytes kept of an engine's error that has to become an SSE event."""


class Responder(Protocol):
    """Where an answer goes. `begin` once, then `body`, the last call with `done`; or `cut`."""

    def begin(
        self,
        status: int,
        head: bytes,
        length: int | None,
        data: bytes,
        *,
        done: bool,
    ) -> None:
        """The head's lines and the first of the body. `length` is the body's, None when nobody knows it yet."""

    def body(self, data: bytes, *, done: bool) -> None:
        """More of the body (perhaps nothing), or its end."""

    def cut(self) -> None:
        """End the connection so that the client cannot take the answer for whole."""


class _Waiting(Enum):
    """Why a request waits."""

    HOLD = "hold"
    """The table says that an engine is to come."""
    SETTLE = "settle"
    """Its engine failed just now, and the daemon may know better in a moment."""


class Relay:
    """One request."""

    __slots__ = (
        "_admission",
        "_alone",
        "_answer",
        "_body",
        "_connection",
        "_detail",
        "_engine",
        "_error",
        "_flowed",
        "_fresh",
        "_headers",
        "_model",
        "_ok",
        "_opened",
        "_path",
        "_paused",
        "_responder",
        "_retried",
        "_sent",
        "_started",
        "_stream",
        "_tail",
        "_tried",
        "_waiting",
        "_wants_stream",
        "over",
    )

    def __init__(self, admission: Admission, responder: Responder, path: bytes, headers: Headers, body: bytes) -> None:
        """`headers`: names in lower case. `body` is counted in `admission.bodies`, and given back here."""
        self._admission = admission
        self._responder = responder
        self._path = path
        self._headers = headers
        self._body = body
        self._model: Model | None = None
        self._engine: Engine | None = None
        self._connection: Connection | None = None
        self._waiting: _Waiting | None = None
        self._wants_stream = False
        self._tried: tuple[str, ...] = ()
        self._retried = False
        self._detail = ""
        self._fresh = False
        self._started = False
        self._opened = False
        self._stream = False
        self._paused = False
        self._tail = b""
        self._error: bytearray | None = None
        self._sent = 0.0
        self._flowed = False
        self._alone = False
        self._ok = False
        self._answer: int | None = NOT_READ
        self.over = False

    def start(self) -> None:
        """Find the model and go."""
        found = request_body.read(self._body)
        if isinstance(found, Problem):
            self._end(found)
            return
        name, self._wants_stream = found
        model = self._admission.index.get(name)
        if model is None:
            self._end(problem.model_not_found(name, [known.name for known in self._admission.models()]))
            return
        self._model = model
        self._admission.running.add(self)
        model.arrivals += 1
        if self._admission.stopping:
            self._reject(problem.shutting_down())
        else:
            self._route(model)

    def flight(self) -> Flight | None:
        """What the daemon is told of it; None while it is at no engine."""
        engine = self._engine
        if engine is None or not self._sent:
            return None
        if self._answer == NOT_READ and not self._wants_stream:
            self._answer = answer_tokens(self._body)
        return Flight(
            engine=engine.id,
            sent=self._sent,
            flowed=self._flowed,
            paused=self._paused,
            streamed=self._wants_stream,
            prompt_bytes=len(self._body),
            answer=None if self._wants_stream else self._answer,
        )

    # the client's side

    def client_gone(self) -> None:
        """The client left: stop the engine's work, give every place back."""
        if self.over:
            return
        self._close()
        if self._model is not None:
            self._model.cancelled += 1
        self._stop_waiting()
        self._drop_engine()

    def cut_off(self) -> None:
        """The gateway ends and can wait no longer."""
        model = self._model
        if self.over or model is None:
            return
        reason = problem.shutting_down()
        self._drop_engine()
        if not self._started:
            self._reject(reason)
            return
        self._close()
        model.failed += 1
        self._break_off(reason)

    def pause(self) -> None:
        """The client reads more slowly than the engine writes."""
        self._paused = True
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        self._paused = False
        if self._connection is not None:
            self._connection.resume()

    # routing and waiting

    def _route(self, model: Model) -> None:
        # What the table calls ready after a hold is worth a try, though it failed before it.
        held = self._waiting is _Waiting.HOLD
        engine = self._admission.pick(model, () if held else self._tried)
        if engine is not None:
            self._stop_waiting()
            self._attempt(model, engine)
            return
        limits = self._admission.limits
        route = model.route
        if route is None:
            self._reject(problem.model_not_found(model.name, [known.name for known in self._admission.models()]))
        elif route.hold:
            self._wait(model, _Waiting.HOLD, limits.hold_s)
        elif self._tried:
            patience = limits.orphaned_s if self._admission.orphaned else limits.settle_s
            self._wait(model, _Waiting.SETTLE, max(patience, limits.settle_s))
        else:
            self._reject(problem.not_serving(model.name, route.state, route.reason, self._retry_after(model)))

    def _wait(self, model: Model, why: _Waiting, seconds: float) -> None:
        if self._waiting is why:
            return
        self._stop_waiting()
        comments = self._wants_stream and why is _Waiting.HOLD
        every = self._admission.limits.held_stream_comment if comments else None
        if model.room.enter(self, seconds, every):
            self._waiting = why
            if len(model.room) == 1:
                self._admission.called.set()
        else:
            self._reject(problem.queue_full(model.name, model.room.limit, self._retry_after(model)))

    def _stop_waiting(self) -> None:
        if self._waiting is not None and self._model is not None:
            self._waiting = None
            self._model.room.leave(self)

    def recheck(self) -> None:
        """The routing table changed."""
        assert self._model is not None
        self._route(self._model)

    def expired(self) -> None:
        """Waited long enough."""
        why, self._waiting = self._waiting, None
        model = self._model
        assert model is not None
        if why is _Waiting.SETTLE:
            self._fail(model, problem.upstream_failed(model.name, self._detail))
            return
        reason = None if model.route is None else model.route.reason
        waited = self._admission.limits.hold_s
        self._reject(problem.hold_timeout(model.name, waited, reason, self._retry_after(model)))

    def still_waiting(self) -> None:
        """Keep a held stream's client, and whatever proxy stands between, from giving up."""
        comment = b": waiting for an engine\n\n"
        if self._opened:
            self._responder.body(comment, done=False)
            return
        self._opened = True
        self._responder.begin(200, EVENT_STREAM + self._host(), None, comment, done=False)

    def closing(self) -> None:
        """The gateway stops."""
        self._waiting = None
        self._reject(problem.shutting_down())

    # one attempt at one engine

    def _attempt(self, model: Model, engine: Engine) -> None:
        head = request_head(self._path, engine.prefix, self._headers, len(self._body))
        if len(head) > LONGEST_HEAD:
            self._reject(problem.headers_too_large(LONGEST_HEAD))
            return
        self._engine = engine
        self._fresh = False
        engine.in_flight += 1
        engine.requests += 1
        model.in_flight += 1
        connection = engine.pool.take()
        if connection is None:
            self._admission.spawn(self._dial(engine, head))
        else:
            self._send(connection, head)

    async def _dial(self, engine: Engine, head: bytes) -> None:
        pool = engine.pool
        try:
            connection = await pool.dial()
        except OSError as error:
            if self.over:
                return
            if error.errno in OURS:
                self._exhausted(error)
            else:
                reason = "no connection in time" if isinstance(error, TimeoutError) else error.strerror or str(error)
                self._attempt_failed(engine, reason)
            return
        if self.over:
            pool.put(connection)
        else:
            self._send(connection, head)

    def _exhausted(self, error: OSError) -> None:
        """It is the gateway that cannot, and the engine's good name stays."""
        self._leave()
        self._reject(problem.exhausted(error.strerror or str(error)))

    def _send(self, connection: Connection, head: bytes) -> None:
        self._connection = connection
        if self._paused:
            connection.pause()
        self._sent = time.monotonic()
        self._alone = self._engine is not None and self._engine.in_flight == 1
        connection.send(self, head, self._body)

    def _attempt_failed(self, engine: Engine, detail: str) -> None:
        """Nothing of an answer came. Another engine gets one chance."""
        model = self._model
        assert model is not None
        engine.failed(model.name, detail, before_first_byte=True)
        self._leave()
        self._detail = detail
        if self._retried:
            self._fail(model, problem.upstream_failed(model.name, detail))
        else:
            model.asked_again += 1
            self._tried = (engine.id,)
            self._retried = True
            self._route(model)

    def _leave(self) -> None:
        """Give the in-flight place back."""
        engine = self._engine
        if engine is not None and self._model is not None:
            self._engine = None
            self._model.in_flight -= 1
            self._admission.leave(engine)

    # what the engine says

    def upstream_data(self, connection: Connection) -> None:
        engine, model = self._engine, self._model
        assert engine is not None
        assert model is not None
        if not self._started:
            self._first_byte(connection, engine, model)
            return
        data = connection.take()
        self._count(engine, data)
        done = connection.done
        if done:
            self._finished(connection, model)
        if self._error is None:
            self._responder.body(data, done=done)
        else:
            self._collect_error(data, done=done)

    def _first_byte(self, connection: Connection, engine: Engine, model: Model) -> None:
        status = connection.status
        if status in TRY_ELSEWHERE and not self._retried:
            other = self._admission.pick(model, (engine.id,))
            if other is not None:
                self._connection = None
                connection.abort()
                engine.errors += 1
                self._leave()
                self._tried = (engine.id,)
                self._retried = True
                self._attempt(model, other)
                return
        self._started = True
        self._ok = status < 500
        engine.prompt_bytes += len(self._body)
        self._let_go()
        engine.ttfb = ttfb = time.monotonic() - self._sent
        engine.sick_until = 0.0
        model.first_byte_after(ttfb)
        head = response_head(connection.head)
        self._stream = head.stream and head.length is None
        data = connection.take()
        self._count(engine, data)
        tags = engine.tags
        done = connection.done
        if done:
            self._finished(connection, model)
        if not self._opened:
            self._responder.begin(status, head.lines + tags.lines, head.length, data, done=done)
        elif self._stream and status == 200:
            self._responder.body(tags.comment + data, done=done)
        else:
            self._error = bytearray()
            self._collect_error(data, done=done)

    def _count(self, engine: Engine, data: bytes) -> None:
        engine.bytes += len(data)
        engine.last_byte = time.monotonic()
        if data and not (data[:1] == b":" and b"data:" not in data):  # a comment keeps a line open, and is no token
            if self._ok:
                engine.last_data = engine.last_byte
                if not self._flowed and self._alone and self._stream and engine.in_flight == 1:
                    engine.firsts.note(engine.last_byte - self._sent, len(self._body))
            self._flowed = True
        if self._stream:
            engine.events += data.count(b"\n\n")
            self._tail = data[-2:] or self._tail

    def _finished(self, connection: Connection, model: Model) -> None:
        self.over = True
        self._admission.running.discard(self)
        self._connection = None
        if connection.status < 500:
            model.completed += 1
        else:
            model.failed += 1
        connection.release()
        self._leave()

    def _collect_error(self, data: bytes, *, done: bool) -> None:
        """A stream was opened while it waited, and the engine did not answer with one: say it as an event."""
        assert self._error is not None
        if len(self._error) < LONGEST_ERROR:
            self._error += data
        if done:
            self._responder.body(_as_event(bytes(self._error)), done=True)

    def upstream_lost(self, connection: Connection, detail: str) -> None:
        self._connection = None
        engine, model = self._engine, self._model
        assert engine is not None
        assert model is not None
        if self._started:
            self._lost(engine, model, detail)
        elif connection.served > 1 and not self._fresh:
            self._fresh = True
            head = request_head(self._path, engine.prefix, self._headers, len(self._body))
            self._admission.spawn(self._dial(engine, head))
        else:
            self._attempt_failed(engine, detail)

    def _lost(self, engine: Engine, model: Model, detail: str) -> None:
        """The engine was lost in the middle of its answer: nobody can continue that unseen."""
        self._close()
        engine.failed(model.name, detail, before_first_byte=False)
        model.failed += 1
        model.broken_off += 1
        self._leave()
        self._break_off(problem.upstream_lost(model.name, detail))

    def _break_off(self, reason: Problem) -> None:
        """End an answer that has begun so that nobody takes it for whole."""
        if self._stream or self._opened:
            separator = b"" if self._tail in {b"", b"\n\n"} else b"\n\n"
            self._responder.body(separator + reason.event(), done=True)
        else:
            self._responder.cut()

    def _drop_engine(self) -> None:
        """Stop the engine's work."""
        if self._connection is not None:
            self._connection.abort()
            self._connection = None
        self._leave()

    # ends without an engine

    def _reject(self, reason: Problem) -> None:
        if self._model is not None:
            self._model.rejected += 1
        self._end(reason)

    def _fail(self, model: Model, reason: Problem) -> None:
        model.failed += 1
        self._end(reason)

    def _end(self, reason: Problem) -> None:
        self._stop_waiting()
        self._close()
        if self._opened:
            self._responder.body(reason.event(), done=True)
            return
        body = reason.body()
        head = lines(reason.headers()) + self._host()
        self._responder.begin(reason.status, head, len(body), body, done=True)

    def _close(self) -> None:
        """From here on the request is over."""
        self.over = True
        self._admission.running.discard(self)
        self._let_go()

    def _let_go(self) -> None:
        """The request will not be sent again."""
        self._admission.bodies.give(len(self._body))
        self._body = b""
        self._headers = ()

    def _host(self) -> bytes:
        table = self._admission.table
        return b"" if table is None else b"x-outrider-host: %b\r\n" % table.host.encode()

    def _retry_after(self, model: Model) -> float:
        """Seconds. The daemon's forecast, or a guess that keeps a crowd from coming back at once."""
        route = model.route
        return 5.0 if route is None or route.retry_after_s is None else route.retry_after_s


def _as_event(body: bytes) -> bytes:
    """An engine's error body as one SSE event."""
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    if not isinstance(document, dict) or "error" not in document:
        text = body[:500].decode(errors="replace")
        return Problem(502, "upstream_failed", f"the engine answered with an error: {text}").event()
    return b"data: " + json.dumps(document).encode() + b"\n\n"
