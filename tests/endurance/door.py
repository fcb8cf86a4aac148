"""A door between a daemon and the real Podman: it sees each call, and can do something at the moment of one.

For deaths inside a call, which no place in the daemon's own code is: Podman has been asked and the answer is still to
come, or the answer is there and the daemon never reads it.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self

_REQUEST = re.compile(rb"(?:^|\r\n|\})(GET|POST|DELETE|HEAD|PUT) (/\S+) HTTP/1\.1\r\n")


class Moment(StrEnum):
    """When in a call: Podman has it (`ASKED`), or has answered and the daemon does not know yet (`ANSWERED`)."""

    ASKED = "asked"
    ANSWERED = "answered"


@dataclass(frozen=True)
class Call:
    """A call of Podman's API, by its verb and the end of its path."""

    method: str
    path: str

    def matches(self, method: str, path: str) -> bool:
        return method == self.method and re.search(self.path, path.partition("?")[0]) is not None


CREATE = Call("POST", r"/containers/create$")
START = Call("POST", r"/containers/[0-9a-f]+/start$")
STOP = Call("POST", r"/containers/[0-9a-f]+/stop$")
REMOVE = Call("DELETE", r"/containers/[0-9a-f]+$")


class Door:
    """Listens on `path` and passes all on to `real`. Use as a context manager."""

    def __init__(self, path: Path, real: str) -> None:
        self.path = path
        self.calls: list[str] = []
        """Each call so far, as `POST /v…/containers/create`."""
        self._real = real
        self._trap: tuple[Call, Moment, Callable[[], object]] | None = None
        self._sprung = threading.Event()
        self._server = socket.socket(socket.AF_UNIX)
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._server.bind(str(self.path))
        self._server.listen(64)
        self._spawn(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)

    def at(self, call: Call, moment: Moment, act: Callable[[], object]) -> None:
        """Do `act` once, at the next such call; that connection carries nothing more afterwards."""
        self._sprung.clear()
        self._trap = (call, moment, act)

    def sprung(self, limit: float) -> bool:
        """Wait until it was done."""
        return self._sprung.wait(limit)

    def _spawn(self, work: Callable[..., None], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads = [t for t in self._threads if t.is_alive()]
        self._threads.append(thread)
        thread.start()
        return thread

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            self._spawn(self._relay, client)

    def _relay(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as there:
            try:
                there.connect(self._real)
            except OSError:
                return
            self._open |= {client, there}
            answer: list[Callable[[], object]] = []
            """What is to be done when the answer to the last call is there."""
            back = self._spawn(self._answers, there, client, answer)
            self._requests(client, there, answer)
            back.join()
            self._open -= {client, there}

    def _requests(self, client: socket.socket, there: socket.socket, answer: list[Callable[[], object]]) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                act, moment = None, Moment.ASKED
                for method, path in _REQUEST.findall(data):
                    self.calls.append(f"{method.decode()} {path.decode().partition('?')[0]}")
                    if self._trap is not None and self._trap[0].matches(method.decode(), path.decode()):
                        _, moment, act = self._trap
                        self._trap = None
                if act is not None and moment is Moment.ANSWERED:
                    answer.append(act)
                there.sendall(data)
                if act is not None and moment is Moment.ASKED:
                    act()
                    self._sprung.set()
        with contextlib.suppress(OSError):
            there.shutdown(socket.SHUT_WR)

    def _answers(self, there: socket.socket, client: socket.socket, answer: list[Callable[[], object]]) -> None:
        with contextlib.suppress(OSError):
            while data := there.recv(65536):
                if answer:
                    answer.pop()()
                    self._sprung.set()
                    break
                client.sendall(data)
        for one in (there, client):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
