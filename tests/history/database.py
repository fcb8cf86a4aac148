"""What outlives daemons, and one daemon's way to it.

In memory: a thread of SQLite's own would run in real time.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from orchestrator.errors import DatabaseFailed
from orchestrator.store import DesiredRow, PausedRow
from orchestrator.views import Desired, Event


class Database:
    """What outlives daemons. `full`: nothing can be written."""

    def __init__(self) -> None:
        self.full = False
        self.was_full_after = 0.0
        """When it was full last; 0.0: never."""
        self.rows: dict[str, DesiredRow] = {}
        self.engines: set[str] = set()
        self.generations: dict[str, int] = {}
        self.starts: dict[str, float] = {}
        self.on: dict[str, tuple[Any, ...]] = {}
        self.events: list[Event] = []
        self.standings: dict[str, str] = {}
        self.paused: dict[str, PausedRow] = {}
        self.crashes = 0


class Store:
    """One daemon's connection to it; each write takes a moment, and none comes from a daemon that is dead."""

    def __init__(self, database: Database, there: Callable[[], bool]) -> None:
        self._db = database
        self._there = there

    async def _write(self) -> None:
        await asyncio.sleep(0.001)
        if not self._there():
            await asyncio.Event().wait()
        if self._db.full:
            raise DatabaseFailed("the disk is full", hint="free some")

    async def desired(self) -> Sequence[DesiredRow]:
        return list(self._db.rows.values())

    async def set_desired(self, name: str, desired: Desired, author: str, at: float) -> None:
        await self._write()
        self._db.rows[name] = DesiredRow(name, desired, author)

    async def set_drained(self, name: str, author: str, at: float) -> None:
        await self._write()
        if name in self._db.rows:
            self._db.rows[name] = dataclasses.replace(self._db.rows[name], drained=True)

    async def clear_drained(self, name: str) -> None:
        await self._write()
        if name in self._db.rows:
            self._db.rows[name] = dataclasses.replace(self._db.rows[name], drained=False)

    async def next_generation(self, name: str, at_least: int = 1) -> int:
        await self._write()
        self._db.generations[name] = max(self._db.generations.get(name, 0) + 1, at_least)
        return self._db.generations[name]

    async def proven(self) -> frozenset[str]:
        return frozenset(self._db.engines)

    async def mark_proven(self, engine: str, at: float) -> None:
        await self._write()
        self._db.engines.add(engine)

    async def forget_engine(self, engine: str) -> None:
        await self._write()
        self._db.engines.discard(engine)

    async def record_start(self, plan: str, name: str, seconds: float, at: float) -> None:
        await self._write()
        self._db.starts[plan] = seconds

    async def start_seconds(self, plan: str, name: str) -> float | None:
        return self._db.starts.get(plan)

    async def devices(self, name: str) -> Sequence[Any]:
        return self._db.on.get(name, ())

    async def set_devices(self, name: str, devices: Sequence[Any], at: float) -> None:
        await self._write()
        self._db.on[name] = tuple(devices)

    async def standings(self) -> Sequence[tuple[str, str]]:
        return list(self._db.standings.items())

    async def keep_standing(self, name: str, text: str, at: float) -> None:
        await self._write()
        self._db.standings[name] = text

    async def forget_standing(self, name: str) -> None:
        await self._write()
        self._db.standings.pop(name, None)

    async def add_crash(self, row: Sequence[object]) -> None:
        await self._write()
        self._db.crashes += 1

    async def paused(self) -> Sequence[PausedRow]:
        return list(self._db.paused.values())

    async def set_paused(self, name: str, author: str, at: float) -> None:
        await self._write()
        self._db.paused[name] = PausedRow(name, author, at)

    async def clear_paused(self, name: str | None) -> None:
        await self._write()
        if name is None:
            self._db.paused.clear()
        else:
            self._db.paused.pop(name, None)

    async def append(self, events: Sequence[Event]) -> None:
        await self._write()
        self._db.events += events
