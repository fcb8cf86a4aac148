"""A real vLLM on the CPU, started with what the adapter says, listening on a unix socket."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from orchestrator.models import Runtime
from orchestrator.plan import KEY, SOCKET
from orchestrator.runtimes import Command, EngineCounters, LaunchRequest, adapter
from tests.runtimes.vllm.venv import Venv
from tests.stack.stack import accepts
from tests.waiting import until_sync

VLLM = adapter(Runtime.VLLM)
START_S = 300.0
"""24 s on an idle machine, 85 s on a busy one."""
STOP_S = 30.0
SECRET = "a-key-for-this-engine"


@dataclass(frozen=True, slots=True)
class Engine:
    """A started engine. `log` is its output so far."""

    process: subprocess.Popen[bytes]
    socket: Path
    logfile: Path
    command: Command

    @property
    def log(self) -> str:
        return self.logfile.read_text(errors="replace")

    def client(self, key: str | None = SECRET) -> httpx.Client:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        transport = httpx.HTTPTransport(uds=str(self.socket))
        return httpx.Client(transport=transport, base_url="http://engine", headers=headers, timeout=120)

    def healthy(self) -> bool:
        """Whether it answers; raises when it ended."""
        if self.process.poll() is not None:
            raise AssertionError(f"vLLM ended with {self.process.returncode}:\n{self.log[-200_000:]}")
        # httpcore's sync transport leaks the socket of a refused connection, so this looks first
        if not accepts(self.socket):
            return False
        with contextlib.suppress(httpx.HTTPError), self.client() as client:
            return client.get(VLLM.health_path, timeout=5).status_code == 200
        return False

    def text(self, tokens: int, **more: Any) -> str:
        """What a greedy chat of so many tokens says."""
        body = {
            "model": "m",
            "messages": [{"role": "user", "content": "Say it."}],
            "max_tokens": tokens,
            "temperature": 0,
            **more,
        }
        with self.client() as client:
            answer = client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["message"]["content"])

    def counters(self) -> EngineCounters:
        """Its own counters, as the adapter reads them."""
        with self.client(None) as client:
            return VLLM.parse_metrics(client.get(VLLM.metrics_path).text)


def environment(venv: Venv, env: Mapping[str, str], caches: Path) -> dict[str, str]:
    """The engine's environment outside of a container: no network names, its own caches."""
    ours = {"PATH": f"{venv.folder / 'bin'}:{os.environ['PATH']}", "HOME": str(caches), "LANG": "C.UTF-8"}
    theirs = {name: value.replace(KEY, SECRET).replace("/cache/", f"{caches}/") for name, value in env.items()}
    return {**ours, **theirs}


@contextlib.contextmanager
def running(venv: Venv, request: LaunchRequest, caches: Path) -> Iterator[Engine]:
    """Start it, wait until it is healthy, end it."""
    command = VLLM.command(request)
    with tempfile.TemporaryDirectory(prefix="or-v-") as folder:
        socket, logfile = Path(folder) / "e.sock", Path(folder) / "log"
        argv = [str(socket) if word == SOCKET else word for word in command.argv]
        words = [str(venv.python), "-m", "vllm.entrypoints.cli.main", "serve", *argv]
        with open(logfile, "wb") as log:
            process = subprocess.Popen(
                words, stdout=log, stderr=log, env=environment(venv, command.env, caches), start_new_session=True
            )
        engine = Engine(process, socket, logfile, command)
        try:
            until_sync(engine.healthy, START_S, "vLLM answers")
            yield engine
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(STOP_S)
