"""In the service manager's place: a datagram socket, as `NOTIFY_SOCKET` names one, and a Podman that can hang."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self


class Listener:
    """Receives what processes say. `address` is for `NOTIFY_SOCKET`."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def message(self, limit: float) -> str | None:
        """The next message within `limit` seconds."""
        if not select.select([self._socket], [], [], limit)[0]:
            return None
        return self._socket.recv(4096).decode()

    def wait(self, line: str, limit: float = 30.0) -> list[str]:
        """All messages up to one that has a line that begins so; fails when it does not come in time."""
        end = time.monotonic() + limit
        seen: list[str] = []
        while (left := end - time.monotonic()) > 0:
            message = self.message(left)
            if message is not None:
                seen.append(message)
                if any(x.startswith(line) for x in message.splitlines()):
                    return seen
        raise AssertionError(f"{line} was not said within {limit} s, but {seen}")

    def longest_silence(self, feeds: int, limit: float = 30.0) -> float:
        """The longest time before each of so many feeds of the watchdog."""
        longest = 0.0
        for _ in range(feeds):
            before = time.monotonic()
            self.wait("WATCHDOG=1", limit)
            longest = max(longest, time.monotonic() - before)
        return longest

    def drain(self) -> None:
        """Forget what was said until now."""
        while self.message(0) is not None:
            pass

    def is_silent(self, line: str, seconds: float) -> bool:
        """Whether nobody says this for so long."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            message = self.message(left)
            if message is not None and line in message.splitlines():
                return False
        return True


class Podman:
    """A door to the real Podman's socket that can be closed, or be made to hang as a machine under load does."""

    def __init__(self, path: Path, real: str) -> None:
        self.path = path
        self._real = real
        self._open = threading.Event()
        self._open.set()
        self._server: socket.socket | None = None
        self._clients: set[socket.socket] = set()

    def serve(self) -> None:
        server = self._server = socket.socket(socket.AF_UNIX)
        self.path.unlink(missing_ok=True)
        server.bind(str(self.path))
        server.listen(64)
        threading.Thread(target=self._accept, args=(server,), daemon=True).start()

    def close(self) -> None:
        """Nobody answers any more."""
        self._open.set()
        self.path.unlink(missing_ok=True)
        if self._server is not None:
            with contextlib.suppress(OSError):
                self._server.shutdown(socket.SHUT_RDWR)
            self._server.close()
        for client in list(self._clients):
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """Calls are taken and not answered."""
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=self._relay, args=(client,), daemon=True).start()

    def _relay(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as there:
            there.connect(self._real)
            self._clients.add(client)
            back = threading.Thread(target=self._copy, args=(there, client), daemon=True)
            back.start()
            self._copy(client, there)
            back.join()
            self._clients.discard(client)

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._open.wait()
                target.sendall(data)
        for end in (source, target):  # one way is done: so is the call
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def told(environ: dict[str, str], listener: Listener, watchdog: float) -> dict[str, str]:
    """The environment that a manager gives a process."""
    return {**environ, "NOTIFY_SOCKET": listener.address, "WATCHDOG_USEC": str(int(watchdog * 1e6))}


def abstract() -> str:
    """An abstract address of this process's own."""
    return f"@outrider-test-{os.getpid()}-{time.monotonic_ns()}"
