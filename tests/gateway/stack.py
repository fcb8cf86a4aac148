"""A gateway as a real process, with a fake daemon and fake engines around it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.paths import Paths, find, prepare
from tests.gateway.client import Client, Response, ask, build
from tests.gateway.fake_daemon import FakeDaemon
from tests.gateway.fake_engine import FakeEngine
from tests.waiting import until

BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
SCALE = "0.02"
"""Time scale of the gateways: reports each 10 ms, comments on held streams each 0.2 s."""
STARTED: list[Gateway] = []
"""Every gateway of the run, for the fixture that ends what a failed test left."""


class Gateway:
    """The process. `log` holds its JSON lines."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self.log: deque[dict[str, Any]] = deque(maxlen=2000)
        self.address = ("", 0)
        self.ops = ("", 0)
        self.process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self, *options: str, wait: bool = True, command: Sequence[str] = ("-m", "api.gateway")) -> None:
        arguments = ["--state-dir", str(self.paths.state_dir), "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0"]
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            *arguments,
            *("--timing-scale", SCALE),
            *options,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONWARNINGS": "error"},
        )
        STARTED.append(self)
        self._reading = asyncio.create_task(self._read())
        if wait:
            await until(lambda: bool(self.logged("listening") or self.logged("failed")), 10, "the gateway to listen")
            line = self.logged("listening") or {"event": "failed", "log": list(self.log)}
            assert line["event"] == "listening", line
            self.address = _address(line["listen"])
            self.ops = _address(line["ops_listen"])

    def logged(self, event: str) -> dict[str, Any] | None:
        """The last line of this event."""
        return next((line for line in reversed(self.log) if line["event"] == event), None)

    async def stop(self) -> int:
        """SIGTERM, and the exit code."""
        assert self.process is not None
        with suppress(ProcessLookupError):
            self.process.terminate()
        return await self.exited()

    async def exited(self) -> int:
        assert self.process is not None
        assert self._reading is not None
        try:
            async with asyncio.timeout(10):
                code = await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
            raise AssertionError(f"the gateway does not end; its log: {list(self.log)[-20:]}") from None
        await self._reading
        return code

    async def kill(self) -> None:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.kill()
        await self.exited()

    async def _read(self) -> None:
        assert self.process is not None
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            try:
                self.log.append(json.loads(line))
            except ValueError:
                self.log.append({"event": "not json", "text": line.decode()})


@dataclass
class Stack:
    """Daemon, gateway, engines, and the table that binds them."""

    folder: Path
    gateway: Gateway
    daemon: FakeDaemon
    revision: int = 0
    fast: bool = True
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    engines: dict[str, FakeEngine] = field(default_factory=dict)

    @classmethod
    async def start(cls, folder: Path, *options: str) -> Stack:
        paths = prepare(find(state_dir=folder, environ={}))
        daemon = FakeDaemon(paths.control_socket)
        await daemon.start()
        stack = cls(folder, Gateway(paths), daemon, fast="--no-fast-path" not in options)
        stack.daemon.table = stack.text()
        await stack.gateway.start(*options)
        return stack

    async def stop(self) -> int:
        try:
            return await self.gateway.stop()
        finally:
            await self.daemon.stop()
            for engine in self.engines.values():
                await engine.stop()

    async def engine(self, name: str, **settings: Any) -> FakeEngine:
        """A started engine; `name` is its id and what it is called in the table."""
        folder = self.gateway.paths.engines / name
        folder.mkdir()
        engine = self.engines[name] = FakeEngine(folder / "engine.sock", **settings)
        await engine.start()
        return engine

    def model(self, name: str, *engines: str, **fields: Any) -> dict[str, Any]:
        """Put a model into the table (`publish` sends it)."""
        entry: dict[str, Any] = {
            "name": name,
            "aliases": [],
            "state": "ready" if engines else "loading",
            "hold": not engines,
            "reason": None,
            "retry_after_s": None,
            "engines": [self.entry(engine) for engine in engines],
        }
        entry.update(fields)
        self.models[name] = entry
        return entry

    def entry(self, engine: str, **fields: Any) -> dict[str, Any]:
        path = self.gateway.paths.engines / engine / "engine.sock"
        return {
            "engine": engine,
            "generation": 3,
            "socket": str(path),
            "port": None,
            "key": f"key-of-{engine}",
            "plan": "ab" * 32,
            "method": "dflash",
            "admit": True,
            **fields,
        }

    def text(self, **fields: Any) -> str:
        table = {
            "schema": 1,
            "boot_id": BOOT_ID,
            "owner": self.gateway.paths.owner,
            "host": "testhost",
            "revision": self.revision,
            "models": list(self.models.values()),
        }
        return json.dumps({**table, **fields})

    async def publish(self) -> None:
        """Send the table and wait until it is in force."""
        self.revision += 1
        self.daemon.publish(self.text())
        await until(self.in_force, 5, f"revision {self.revision} in force")

    async def in_force(self) -> bool:
        return bool((await self.health())["revision"] == self.revision)

    async def serve(self, name: str, engines: int = 1, **fields: Any) -> list[FakeEngine]:
        """A model with that many engines, published."""
        names = [f"{name.replace('/', '-')}-{index}" for index in range(engines)]
        made = [await self.engine(item) for item in names]
        self.model(name, *names, **fields)
        await self.publish()
        return made

    async def ask(self, body: object = None, path: str = "/v1/chat/completions", **options: str) -> Response:
        return await ask(self.gateway.address, body, path, **options)

    async def ops(self, path: str) -> Response:
        return await ask(self.gateway.ops, None, path)

    async def health(self) -> dict[str, Any]:
        document: dict[str, Any] = (await self.ops("/healthz")).json()
        return document

    async def stats(self) -> dict[str, Any]:
        """The report, read at the daemon's door."""
        document: dict[str, Any] = (await self.door("GET", "/stats")).json()
        return document

    async def counts(self, model: str) -> dict[str, int]:
        found: dict[str, int] = (await self.stats())["models"][model]
        beside = {"arrivals", "broken_off", "asked_again"}
        assert found["arrivals"] == sum(value for key, value in found.items() if key not in beside), found
        return found

    async def door(self, method: str, path: str, body: object = None) -> Response:
        """A request to the gateway's own unix socket."""
        client = Client(*await asyncio.open_unix_connection(str(self.gateway.paths.gateway_socket)))
        try:
            client.send(build(method, path, body))
            return await client.response()
        finally:
            client.abort()

    async def drain(self, engine: str, timeout_s: float = 5.0, **fields: object) -> Response:
        return await self.door("POST", "/drain", {"engine": engine, "timeout_s": timeout_s, **fields})


def chat(model: str, **fields: Any) -> dict[str, Any]:
    """A chat request's body; `fake` fields script the engine."""
    return {"model": model, "messages": [{"role": "user", "content": "hi"}], **fields}


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)
