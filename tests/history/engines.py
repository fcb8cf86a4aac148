"""How the made-up engines answer."""

from __future__ import annotations

import asyncio
from typing import Any, Self

from orchestrator.engine import Engine
from orchestrator.engine_client import EngineUnreachable
from orchestrator.errors import EngineFailed
from orchestrator.proof import Proof
from orchestrator.runner import Runner
from tests.history.machine import Machine, Process


class Answer:
    def __init__(self, status: int, model: str) -> None:
        self.status, self._model = status, model

    def json(self) -> object:
        """The only list that is asked for: of models."""
        return {"data": [{"id": self._model}]}


class Client:
    """How an engine answers: by how far its process has loaded."""

    def __init__(self, machine: Machine, engine: Engine) -> None:
        self._machine, self.engine = machine, engine

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def get(self, path: str, *, timeout: float) -> Answer:
        await asyncio.sleep(0.005)
        process = self._machine.process(self.engine.pid or 0)
        if process is None or not process.alive or self._cut_off(process):
            raise EngineUnreachable("refused", connected=False, refused=True)
        if process.hung:
            await asyncio.sleep(timeout)
            raise EngineUnreachable("no answer in time", busy=True)
        return Answer(200 if process.loaded(self._machine.now) else 503, self.engine.plan.model)

    def _cut_off(self, process: Process) -> bool:
        """Its port leads nowhere, though it listens inside."""
        return process.fate == "cut_off" and not self.engine.plan.socket

    async def post(self, path: str, body: object, *, timeout: float) -> Answer:
        return await self.get(path, timeout=timeout)

    @property
    def fate(self) -> str:
        process = self._machine.process(self.engine.pid or 0)
        return "gone" if process is None else process.fate


async def prove(client: Client, *_: object, **__: object) -> Proof:
    """In the place of the proof."""
    await asyncio.sleep(0.5)
    if client.fate == "wrong":
        raise EngineFailed("proof_failed", "it answers nonsense", retryable=True)
    return Proof("text", 8, 4, True)


class SimRunner(Runner):
    machine: Machine

    def client(self, engine: Engine) -> Any:
        return Client(self.machine, engine)
