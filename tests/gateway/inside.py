"""A gateway's data plane within the test's own process: its clock can be turned, its limits be small."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from api.gateway import fastpath, table
from api.gateway.admission import Admission, Limits
from api.gateway.app import GatewayApp
from api.gateway.guard import Guard
from api.gateway.protocol import CarefulProtocol
from api.gateway.server import Listener
from api.gateway.settings import Address
from tests.gateway.client import Client
from tests.gateway.fake_engine import FakeEngine
from tests.waiting import until

GUARD = Guard("127.0.0.1")


@dataclass
class Inside:
    """`check` is what runs each second; `later` runs it as if that many seconds had gone by."""

    admission: Admission
    listener: Listener
    address: tuple[str, int]
    engine: FakeEngine
    revision: int = 0
    ahead: float = 0.0

    async def client(self) -> Client:
        return await Client.connect(self.address)

    @property
    def connections(self) -> list[CarefulProtocol]:
        return cast(list[CarefulProtocol], list(self.listener.state.connections))

    async def later(self, seconds: float) -> None:
        await self.listener.check(time.monotonic() + self.ahead)
        self.ahead += seconds
        await self.listener.check(time.monotonic() + self.ahead)

    async def open(self, count: int) -> None:
        """Wait until that many connections are open."""
        await until(lambda: len(self.connections) == count, 5, f"{count} connections")

    def publish(self, models: list[dict[str, Any]], *, fresh: bool = False) -> None:
        self.revision += 1
        document = {"schema": 1, "boot_id": "b", "owner": "o", "host": "h", "revision": self.revision, "models": models}
        self.admission.apply(table.parse(json.dumps(document)), "daemon", fresh=fresh)

    def model(self, name: str = "m", **fields: Any) -> dict[str, Any]:
        return {"name": name, "state": "ready", "engines": [self.entry("e", **fields)]}

    def entry(self, engine: str, **fields: Any) -> dict[str, Any]:
        base = {"engine": engine, "generation": 1, "socket": str(self.engine.path), "plan": "p", "method": "none"}
        return {**base, **fields}


@asynccontextmanager
async def inside(folder: Path, *, fast: bool = True, most: int | None = None, **limits: Any) -> AsyncIterator[Inside]:
    """A listener and an engine; the table names the model `m`, served by it."""
    admission = Admission(Limits(**limits), wall=0.0)
    protocol = fastpath.protocol_for(admission, GUARD if fast else None)
    listener = Listener(GatewayApp(admission, GUARD), protocol, 75.0, most)
    bound = await listener.tcp(Address("127.0.0.1", 0), "listen")
    engine = FakeEngine(folder / "e.sock")
    await engine.start()
    made = Inside(admission, listener, (bound.host, bound.port), engine)
    made.publish([made.model()])
    try:
        yield made
    finally:
        listener.stop_accepting()
        listener.abort()
        await listener.finish(5.0)
        await engine.stop()
        admission.close()
        await asyncio.sleep(0)
