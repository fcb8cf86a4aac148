"""The launcher as a process of its own on a unix socket, and a small HTTP client for it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.waiting import until_sync

REPOSITORY = Path(__file__).parents[2]
LIMIT = 20.0
"""Seconds for anything an engine does with a tiny model; it takes a fraction of one."""


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("engine", timeout=LIMIT)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(LIMIT)
        self.sock.connect(self._path)


def call(
    place: Path | str, path: str, body: object = None, headers: Mapping[str, str] | None = None
) -> tuple[int, Any]:
    """Status and body of a request to a socket or to `host:port`, decoded if it is JSON; a GET without a body,
    else a POST."""
    connection = _Connection(place) if isinstance(place, Path) else http.client.HTTPConnection(place, timeout=LIMIT)
    try:
        data = None if body is None else json.dumps(body)
        connection.request("GET" if data is None else "POST", path, data, dict(headers or {}))
        answer = connection.getresponse()
        text = answer.read().decode()
    finally:
        connection.close()
    return answer.status, json.loads(text) if text.startswith(("{", "[")) else text


@dataclass(frozen=True, slots=True)
class Answer:
    """The text of a chat and how many tokens were drafted and accepted for it."""

    text: str
    drafted: int
    accepted: int
    finish: str


@dataclass(frozen=True, slots=True)
class Running:
    """An engine's process, its socket and its log file."""

    process: subprocess.Popen[bytes]
    socket: Path
    log_file: Path

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def call(self, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
        """`call` on this engine's socket."""
        return call(self.socket, path, body, headers)

    def chat(self, tokens: int, prompt: str = "Say it.", **more: object) -> Answer:
        """A greedy chat of so many tokens."""
        message = {"messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "temperature": 0}
        status, value = self.call("/v1/chat/completions", message | more)
        assert status == 200, value
        choice, timings = value["choices"][0], value["timings"]
        return Answer(
            choice["message"]["content"],
            timings.get("draft_n", 0),
            timings.get("draft_n_accepted", 0),
            choice["finish_reason"],
        )

    def healthy(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(f"the engine ended with {self.process.returncode}:\n{self.log[-3000:]}")
        try:
            return self.call("/health")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send the signal; the exit status."""
        self.process.send_signal(number)
        return self.process.wait(LIMIT)


def launch(
    wheel: Path,
    folder: Path,
    arguments: Sequence[str | Path],
    env: Mapping[str, str] | None = None,
    command: Sequence[str | Path] | None = None,
) -> Running:
    """Start the launcher (or another `command`) with a socket in the folder; does not wait for it."""
    path, log = folder / "engine.sock", folder / "engine.log"
    python_path = os.pathsep.join([str(wheel), str(REPOSITORY)])
    words = [*(command or (sys.executable, "-m", "containers.embedded.launcher")), "--host", path, "-t", "1"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(word) for word in [*words, *arguments]],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": python_path, **(env or {})},
        )
    return Running(process, path, log)


@contextlib.contextmanager
def running(
    wheel: Path,
    folder: Path,
    arguments: Sequence[str | Path],
    env: Mapping[str, str] | None = None,
    command: Sequence[str | Path] | None = None,
) -> Iterator[Running]:
    """A healthy engine, ended at the block's end."""
    engine = launch(wheel, folder, arguments, env, command)
    try:
        until_sync(engine.healthy, LIMIT, "the engine's health")
        yield engine
    finally:
        if engine.process.poll() is None:
            engine.process.kill()
        engine.process.wait(LIMIT)
