"""A small control server on a unix socket, and a gateway on a port: what the command line talks to.

Answers are scripted: a route gives its answers in turn and goes on giving the last.
Everything asked is kept, for tests to look at.
"""

from __future__ import annotations

import json
import socketserver
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Asked:
    """One request as it arrived."""

    method: str
    path: str
    query: str
    body: Any
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Answer:
    """One response: JSON, or raw `pieces` of a stream."""

    body: Any = None
    status: int = 200
    kind: str = "application/json"
    pieces: Iterable[bytes] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def problem(status: int, code: str, detail: str, *, hint: str | None = None, **evidence: object) -> Answer:
    """An error in the API's form."""
    body = {
        "type": f"urn:outrider:{code}",
        "title": code,
        "status": status,
        "detail": detail,
        "code": code,
        "hint": hint,
        "retryable": False,
        "evidence": evidence,
    }
    return Answer(body, status, "application/problem+json")


def events(*messages: tuple[str, Any], ids: bool = True) -> Answer:
    """A stream of server-sent events that ends with `event: end`."""
    pieces = [b": ping\n\n"]
    for number, (event, data) in enumerate(messages, 1):
        head = f"id: {number}\n" if ids else ""
        pieces.append(f"{head}event: {event}\ndata: {json.dumps(data)}\n\n".encode())
    pieces.append(b'event: end\ndata: {"reason": "over"}\n\n')
    return Answer(kind="text/event-stream", pieces=pieces)


class Script:
    """The routes of a fake server: `on("GET", "/deployments", answer, answer, ...)`."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self._routes: dict[tuple[str, str], list[Answer | Callable[[Asked], Answer]]] = {}
        self._lock = threading.Lock()

    def on(self, method: str, path: str, *answers: Any) -> None:
        """Set a route's answers; anything that is no Answer is JSON of a 200."""
        self._routes[method, path] = [a if isinstance(a, Answer) or callable(a) else Answer(a) for a in answers]

    def answer(self, asked: Asked) -> Answer:
        with self._lock:
            self.asked.append(asked)
            waiting = self._routes.get((asked.method, asked.path))
            if not waiting:
                return problem(404, "not_found", f"nothing at {asked.path}")
            chosen = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        return chosen if isinstance(chosen, Answer) else chosen(asked)

    def asked_for(self, method: str, path: str) -> list[Asked]:
        return [a for a in self.asked if (a.method, a.path) == (method, path)]


class _Quiet(socketserver.ThreadingMixIn):
    """A connection that a test (or a client) breaks off is no news; anything else is."""

    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            traceback.print_exc()


class _Unix(_Quiet, socketserver.UnixStreamServer):
    pass


class _Tcp(_Quiet, HTTPServer):
    pass


def _handler(script: Script, prefix: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            raw = self.rfile.read(length)
            where = urlsplit(self.path)
            path = where.path.removeprefix(prefix)
            asked = Asked(self.command, path, where.query, json.loads(raw) if raw else None, dict(self.headers.items()))
            answer = script.answer(asked)
            if answer.pieces is None:
                self._whole(answer)
            else:
                self._stream(answer)

        do_GET = do_POST = do_PUT = do_DELETE = _serve

        def _whole(self, answer: Answer) -> None:
            body = b"" if answer.status == 204 else json.dumps(answer.body).encode()
            self.send_response(answer.status)
            for name, value in {"content-type": answer.kind, **answer.headers, "content-length": len(body)}.items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(body)

        def _stream(self, answer: Answer) -> None:
            self.send_response(answer.status)
            self.send_header("content-type", answer.kind)
            self.send_header("connection", "close")
            self.end_headers()
            for piece in answer.pieces or ():
                self.wfile.write(piece)
                self.wfile.flush()
            self.close_connection = True

        def address_string(self) -> str:
            return "unix"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            pass

    return Handler


@contextmanager
def control(socket: Path) -> Iterator[Script]:
    """A daemon's control API on this socket."""
    script = Script()
    socket.parent.mkdir(parents=True, exist_ok=True)
    with _Unix(str(socket), _handler(script, "/api/v1")) as server:
        yield from _run(server, script)


@contextmanager
def gateway() -> Iterator[tuple[str, Script]]:
    """A gateway on a free port: (host:port, its script)."""
    script = Script()
    with _Tcp(("127.0.0.1", 0), _handler(script, "/v1")) as server:
        for running in _run(server, script):
            yield f"127.0.0.1:{server.server_address[1]}", running


def _run(server: socketserver.BaseServer, script: Script) -> Iterator[Script]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield script
    finally:
        server.shutdown()
        thread.join()


def view(state: str = "ready", name: str = "smollm2", **changes: Any) -> dict[str, Any]:
    """A deployment as the API shows it."""
    engine = {
        "id": "0" * 16,
        "deployment": name,
        "generation": 3,
        "state": state,
        "container_id": "c0ffee",
        "pid": 1,
        "plan": "d" * 64,
        "runtime": "llama.cpp",
        "image": "sha256:0",
        "method": "ngram",
        "draft_tokens": 8,
        "context": 4096,
        "parallel": 2,
        "socket": "/run/x/engine.sock",
        "port": None,
        "since": 1700000000.0,
        "in_flight": 0,
    }
    base: dict[str, Any] = {
        "deployment": name,
        "desired": "running",
        "desired_by": "cli:me",
        "state": state,
        "reason": None,
        "host": "here",
        "engine": None if state == "stopped" else engine,
        "engines": [],
        "in_flight": 0,
        "waiting": 0,
        "plan": "d" * 64,
        "drifted": False,
        "progress": None,
        "next_attempt_s": None,
        "restarts": 0,
        "rung": None,
    }
    return {**base, **changes}


def weights(state: str = "here", **changes: Any) -> dict[str, Any]:
    """A variant's weights as the API shows them."""
    return {
        "name": "q4-1",
        "kind": "variant",
        "format": "gguf",
        "state": state,
        "repository": "org/smollm2-gguf:Q4_1",
        "revision": "f" * 40,
        "path": "/var/lib/outrider/models/hub/x.gguf" if state == "here" else None,
        "bytes": 98 * 10**6,
        "origin": "hub",
        "checked_at": 1700000000.0,
        "checked_ok": True,
        "problem": None,
        **changes,
    }


def model(name: str = "smollm2", **changes: Any) -> dict[str, Any]:
    """A model as the API shows it."""
    return {
        "name": name,
        "aliases": ["SmolLM2"],
        "variants": ["q4-1"],
        "drafters": [],
        "origin": "/etc/outrider/models.d/smollm2.toml",
        "weight_bytes": 98 * 2**20,
        "files_ok": True,
        "problem": None,
        "weights": [weights()],
        **changes,
    }


def job(state: str = "running", **changes: Any) -> dict[str, Any]:
    """A job as the API shows it."""
    return {
        "id": "j1",
        "kind": "add_model",
        "subject": "smollm2",
        "state": state,
        "detail": "copying",
        "started_at": 1700000000.0,
        "done_bytes": 49 * 2**20,
        "total_bytes": 98 * 2**20,
        "error": None,
        "result": None,
        **changes,
    }


def event(sequence: int, text: str, **changes: Any) -> dict[str, Any]:
    """A journal entry as the API shows it."""
    return {
        "sequence": sequence,
        "at": 1700000000.0 + sequence,
        "host": "here",
        "boot_id": "b",
        "kind": "engine",
        "code": "engine_ready",
        "text": text,
        "deployment": "smollm2",
        "evidence": {},
        **changes,
    }
