"""What must outlive the daemon and no container can hold: SQLite in the state folder.

Desired state with its author, the last generation of each deployment, which engines
had proven themselves, how long starts took, the routing table's revision, and the
journal. Everything else is derived from containers and configuration. aiosqlite keeps
SQLite's blocking calls off the event loop.

A database that cannot be read is set aside, not repaired in place: engines are adopted
by their labels, so what is lost is a person's `desired` and the history.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiosqlite

from orchestrator.views import Desired, Event

SCHEMA_VERSION = 1
JOURNAL_KEPT = 20_000

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS desired (
    deployment TEXT PRIMARY KEY, desired TEXT NOT NULL, author TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS generation (deployment TEXT PRIMARY KEY, last INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS proven (engine TEXT PRIMARY KEY, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS starts (
    plan TEXT NOT NULL, deployment TEXT NOT NULL, seconds REAL NOT NULL, at REAL NOT NULL);
CREATE INDEX IF NOT EXISTS starts_by_deployment ON starts (deployment, at);
CREATE TABLE IF NOT EXISTS journal (
    sequence INTEGER PRIMARY KEY, at REAL NOT NULL, host TEXT NOT NULL, boot_id TEXT NOT NULL, kind TEXT NOT NULL,
    code TEXT NOT NULL, text TEXT NOT NULL, deployment TEXT, evidence TEXT NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class DesiredRow:
    """What a person asked for, and who it was."""

    deployment: str
    desired: Desired
    author: str


class Store:
    """The database. Every method is a coroutine; writes are durable when they return."""

    def __init__(self, connection: aiosqlite.Connection, set_aside: Path | None) -> None:
        self._db = connection
        self.set_aside = set_aside
        """Where an unreadable database was moved to, if there was one."""

    @classmethod
    async def open(cls, path: Path) -> Store:
        """Open or create the database; an unreadable one is renamed to `*.unreadable-N` first."""
        try:
            return cls(await _connect(path), None)
        except sqlite3.DatabaseError:
            aside = _set_aside(path)
            return cls(await _connect(path), aside)

    async def close(self) -> None:
        await self._db.close()

    # desired state

    async def desired(self) -> Sequence[DesiredRow]:
        rows = await self._db.execute_fetchall("SELECT deployment, desired, author FROM desired ORDER BY deployment")
        return [DesiredRow(r[0], Desired(r[1]), r[2]) for r in rows if r[1] in set(Desired)]

    async def set_desired(self, deployment: str, desired: Desired, author: str, at: float) -> None:
        await self._db.execute(
            "INSERT INTO desired VALUES (?, ?, ?, ?) ON CONFLICT (deployment) DO UPDATE"
            " SET desired = excluded.desired, author = excluded.author, at = excluded.at",
            (deployment, desired.value, author, at),
        )
        await self._db.commit()

    async def forget(self, deployment: str) -> None:
        """Forget what was desired of a deployment that is no longer defined. Its generations go on counting."""
        await self._db.execute("DELETE FROM desired WHERE deployment = ?", (deployment,))
        await self._db.commit()

    # generations

    async def next_generation(self, deployment: str, at_least: int = 1) -> int:
        """A number never used for this deployment before; `at_least` covers what containers' labels show."""
        rows = list(await self._db.execute_fetchall("SELECT last FROM generation WHERE deployment = ?", (deployment,)))
        number = max(at_least, (rows[0][0] if rows else 0) + 1)
        await self._db.execute(
            "INSERT INTO generation VALUES (?, ?) ON CONFLICT (deployment) DO UPDATE SET last = excluded.last",
            (deployment, number),
        )
        await self._db.commit()
        return number

    # what engines have shown

    async def proven(self) -> frozenset[str]:
        """Ids of engines that were ready once."""
        return frozenset(r[0] for r in await self._db.execute_fetchall("SELECT engine FROM proven"))

    async def mark_proven(self, engine: str, at: float) -> None:
        await self._db.execute("INSERT OR REPLACE INTO proven VALUES (?, ?)", (engine, at))
        await self._db.commit()

    async def forget_engine(self, engine: str) -> None:
        await self._db.execute("DELETE FROM proven WHERE engine = ?", (engine,))
        await self._db.commit()

    async def record_start(self, plan: str, deployment: str, seconds: float, at: float) -> None:
        """How long a start took, from create to ready."""
        await self._db.execute("INSERT INTO starts VALUES (?, ?, ?, ?)", (plan, deployment, seconds, at))
        await self._db.commit()

    async def start_seconds(self, plan: str, deployment: str) -> float | None:
        """The longest of the last five starts of this plan, else of this deployment; None when never seen."""
        for column, value in (("plan", plan), ("deployment", deployment)):
            query = f"SELECT seconds FROM starts WHERE {column} = ? ORDER BY at DESC LIMIT 5"  # noqa: S608 - column is ours
            rows = [r[0] for r in await self._db.execute_fetchall(query, (value,))]
            if rows:
                return float(max(rows))
        return None

    # the routing table's revision

    async def revision(self, at_least: int) -> int:
        """A revision above every earlier one: the gateway refuses to go back."""
        rows = list(await self._db.execute_fetchall("SELECT value FROM meta WHERE key = 'revision'"))
        number = max(at_least, (int(rows[0][0]) if rows else 0) + 1)
        await self._db.execute("INSERT OR REPLACE INTO meta VALUES ('revision', ?)", (str(number),))
        await self._db.commit()
        return number

    # the journal

    async def append(self, events: Sequence[Event]) -> None:
        await self._db.executemany(
            "INSERT OR REPLACE INTO journal VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    e.sequence,
                    e.at,
                    e.host,
                    e.boot_id,
                    e.kind,
                    e.code,
                    e.text,
                    e.deployment,
                    json.dumps(dict(e.evidence)),
                )
                for e in events
            ],
        )
        await self._db.commit()

    async def journal(self, since: int = 0, limit: int = 1000) -> Sequence[Event]:
        """The newest `limit` entries after `since`, oldest first."""
        rows = await self._db.execute_fetchall(
            "SELECT sequence, at, host, boot_id, kind, code, text, deployment, evidence FROM journal"
            " WHERE sequence > ? ORDER BY sequence DESC LIMIT ?",
            (since, limit),
        )
        return [_event(r) for r in reversed(list(rows))]

    async def compact(self) -> int:
        """Drop journal entries beyond the newest `JOURNAL_KEPT` and starts beyond a thousand; how many went."""
        cursor = await self._db.execute(
            "DELETE FROM journal WHERE sequence <= (SELECT MAX(sequence) FROM journal) - ?", (JOURNAL_KEPT,)
        )
        await self._db.execute(
            "DELETE FROM starts WHERE rowid NOT IN (SELECT rowid FROM starts ORDER BY at DESC LIMIT 1000)"
        )
        await self._db.commit()
        return cursor.rowcount


def _event(row: Any) -> Event:
    evidence: Mapping[str, object] = json.loads(row[8])
    return Event(row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7], evidence)


async def _connect(path: Path) -> aiosqlite.Connection:
    db = await aiosqlite.connect(path)
    try:
        await db.execute("PRAGMA journal_mode = WAL")
        await db.execute("PRAGMA synchronous = FULL")
        await db.executescript(_SCHEMA)
        await db.execute("INSERT OR IGNORE INTO meta VALUES ('schema', ?)", (str(SCHEMA_VERSION),))
        await db.commit()
    except BaseException:
        await db.close()
        raise
    return db


def _set_aside(path: Path) -> Path:
    """Rename the database to the first free `*.unreadable-N`; its new name."""
    for number in range(1, 1000):
        candidate = path.with_name(f"{path.name}.unreadable-{number}")
        if not candidate.exists():
            path.rename(candidate)
            for suffix in ("-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            return candidate
    raise FileExistsError(f"{path}.unreadable-1 to -999 all exist")
