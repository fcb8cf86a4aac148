"""The gateway's routing table, composed from what the deployments publish.

Each change makes a new table with a higher revision; readers get the present table at
once and then each new one (a slow reader skips to the newest). Nothing is handed out
before adoption is done: a table without the engines that still run would cut traffic off.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from orchestrator.views import State, Why

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class RouteEngine:
    """One engine as the gateway reaches it. `admit` False: no new requests, those in flight go on."""

    engine: str
    generation: int
    socket: str | None
    port: int | None
    key: str = field(repr=False)
    plan: str
    method: str
    admit: bool


@dataclass(frozen=True, slots=True)
class Route:
    """One model: where requests go, whether they may wait, and why not when they may not. While an engine is on its
    way `reason` is how far it is. A gateway reads its text and its hint, and an older one its text."""

    name: str
    aliases: tuple[str, ...]
    state: State
    hold: bool
    reason: Why | None
    retry_after_s: float | None
    engines: tuple[RouteEngine, ...]


class RoutingTable:
    """The present table. One writer (the daemon's loop), any number of readers."""

    def __init__(self, *, boot_id: str, owner: str, host: str, revision: int) -> None:
        self._head = {"schema": SCHEMA, "boot_id": boot_id, "owner": owner, "host": host}
        self._revision = revision
        self._routes: dict[str, Route] = {}
        self._open = asyncio.Event()
        self._news = asyncio.Event()

    @property
    def revision(self) -> int:
        return self._revision

    def open(self) -> None:
        """Adoption is done: readers may see the table from now on."""
        self._open.set()

    def publish(self, name: str, route: Route | None) -> bool:
        """Set or remove one model's route; whether anything changed."""
        if self._routes.get(name) == route:
            return False
        if route is None:
            del self._routes[name]
        else:
            self._routes[name] = route
        self._revision += 1
        news, self._news = self._news, asyncio.Event()
        news.set()
        return True

    def table(self) -> Mapping[str, Any]:
        """The contract's JSON form. It carries engine keys: for the gateway alone."""
        models = [asdict(self._routes[name]) for name in sorted(self._routes)]
        return {**self._head, "revision": self._revision, "models": models}

    async def follow(self) -> AsyncIterator[Mapping[str, Any]]:
        """The present table, then each newer one."""
        await self._open.wait()
        while True:
            news = self._news
            yield self.table()
            await news.wait()
