"""What must outlive the daemon and no container can hold: SQLite in the state folder.

Desired state with its author, the last generation of each deployment, which engines
had proven themselves, how long starts took, failures and where they led, the routing table's revision, and
the journal. Everything else is derived from containers and configuration. aiosqlite keeps
SQLite's blocking calls off the event loop.

A database that cannot be read is set aside, not repaired in place: engines are adopted
by their labels, so what is lost is a person's `desired` and the history.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiosqlite

from orchestrator.device_need import Device
from orchestrator.errors import DatabaseFailed
from orchestrator.views import Desired, Event

SCHEMA_VERSION = 1
JOURNAL_KEPT = 20_000

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS desired (
    deployment TEXT PRIMARY KEY, desired TEXT NOT NULL, author TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS drained (deployment TEXT PRIMARY KEY, author TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS paused (name TEXT PRIMARY KEY, author TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS generation (deployment TEXT PRIMARY KEY, last INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS proven (engine TEXT PRIMARY KEY, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS starts (
    plan TEXT NOT NULL, deployment TEXT NOT NULL, seconds REAL NOT NULL, at REAL NOT NULL);
CREATE INDEX IF NOT EXISTS starts_by_deployment ON starts (deployment, at);
CREATE TABLE IF NOT EXISTS pulled (
    image TEXT NOT NULL, reference TEXT NOT NULL, at REAL NOT NULL, PRIMARY KEY (image, reference));
CREATE TABLE IF NOT EXISTS pins (
    reference TEXT PRIMARY KEY, digest TEXT NOT NULL, author TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS standings (deployment TEXT PRIMARY KEY, standing TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS crashes (
    deployment TEXT NOT NULL, at REAL NOT NULL, boot TEXT NOT NULL, generation INTEGER, plan TEXT, rung TEXT NOT NULL,
    code TEXT NOT NULL, fault TEXT NOT NULL, ran_for REAL NOT NULL, action TEXT NOT NULL, text TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS crashes_by_deployment ON crashes (deployment, at);
CREATE TABLE IF NOT EXISTS devices (deployment TEXT PRIMARY KEY, devices TEXT NOT NULL, at REAL NOT NULL);
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
    drained: bool = False
    """Whether it is to admit nothing more, until it is started again."""


@dataclass(frozen=True, slots=True)
class PausedRow:
    """What a person told Outrider to keep its hands off (`*`: everything), who it was and when (Unix seconds)."""

    name: str
    author: str
    at: float


@dataclass(frozen=True, slots=True)
class PinRow:
    """The digest that an image's name is to mean here, who said so and when (Unix seconds)."""

    reference: str
    digest: str
    author: str
    at: float


class Store:
    """The database. Every method is a coroutine; writes are durable when they return."""

    def __init__(self, connection: aiosqlite.Connection, set_aside: Path | None) -> None:
        self._db = connection
        self.set_aside = set_aside
        """Where an unreadable database was moved to, if there was one."""

    @classmethod
    async def open(cls, path: Path) -> Store:
        """Open or create the database; a corrupt one is renamed to `*.unreadable-N` first.

        Raises `DatabaseFailed` for anything else: a database that is locked, or on a full disk, is
        a good one.
        """
        try:
            return cls(await _connect(path), None)
        except sqlite3.Error as error:
            if not _corrupt(error):
                raise _failed("opened", error) from error
        aside = await asyncio.to_thread(_set_aside, path)
        try:
            return cls(await _connect(path), aside)
        except sqlite3.Error as error:
            raise _failed("made anew", error) from error

    async def _read(self, query: str, values: Sequence[object] = ()) -> list[Any]:
        try:
            return list(await self._db.execute_fetchall(query, values))
        except sqlite3.Error as error:
            raise _failed("read", error) from error

    async def _write(self, query: str, values: Sequence[object] = ()) -> int:
        """One durable statement; the number of rows it touched."""
        try:
            cursor = await self._db.execute(query, values)
            await self._db.commit()
        except sqlite3.Error as error:
            raise _failed("written", error) from error
        return cursor.rowcount

    async def close(self) -> None:
        await self._db.close()

    # desired state

    async def desired(self) -> Sequence[DesiredRow]:
        rows = await self._read(
            "SELECT d.deployment, d.desired, d.author, n.deployment IS NOT NULL FROM desired d"
            " LEFT JOIN drained n ON n.deployment = d.deployment ORDER BY d.deployment"
        )
        return [DesiredRow(r[0], Desired(r[1]), r[2], bool(r[3])) for r in rows if r[1] in set(Desired)]

    async def set_desired(self, deployment: str, desired: Desired, author: str, at: float) -> None:
        await self._write(
            "INSERT INTO desired VALUES (?, ?, ?, ?) ON CONFLICT (deployment) DO UPDATE"
            " SET desired = excluded.desired, author = excluded.author, at = excluded.at",
            (deployment, desired.value, author, at),
        )

    async def set_drained(self, deployment: str, author: str, at: float) -> None:
        """A person wants it to admit nothing more. Cleared by `clear_drained`, and when it is forgotten."""
        await self._write("INSERT OR REPLACE INTO drained VALUES (?, ?, ?)", (deployment, author, at))

    async def clear_drained(self, deployment: str) -> None:
        """It admits again."""
        await self._write("DELETE FROM drained WHERE deployment = ?", (deployment,))

    async def paused(self) -> Sequence[PausedRow]:
        """What Outrider is to keep its hands off; a name, or `*` for everything."""
        return [PausedRow(*row) for row in await self._read("SELECT name, author, at FROM paused ORDER BY at, name")]

    async def set_paused(self, name: str, author: str, at: float) -> None:
        await self._write("INSERT OR REPLACE INTO paused VALUES (?, ?, ?)", (name, author, at))

    async def clear_paused(self, name: str | None) -> None:
        """It may act again; with None, everywhere."""
        await self._write("DELETE FROM paused WHERE name = ?1 OR ?1 IS NULL", (name,))

    async def forget(self, deployment: str) -> None:
        """Forget what was desired of a deployment that is no longer defined, and where it ran. Its generations
        go on counting."""
        await self.clear_drained(deployment)
        await self.clear_paused(deployment)
        await self._write("DELETE FROM desired WHERE deployment = ?", (deployment,))
        await self._write("DELETE FROM devices WHERE deployment = ?", (deployment,))
        await self.forget_standing(deployment)

    # failures (`orchestrator.restarting.ledger`)

    async def standings(self) -> Sequence[tuple[str, str]]:
        """Where each deployment stands on its ladder, as JSON."""
        return [(r[0], r[1]) for r in await self._read("SELECT deployment, standing FROM standings")]

    async def keep_standing(self, deployment: str, standing: str, at: float) -> None:
        await self._write("INSERT OR REPLACE INTO standings VALUES (?, ?, ?)", (deployment, standing, at))

    async def forget_standing(self, deployment: str) -> None:
        await self._write("DELETE FROM standings WHERE deployment = ?", (deployment,))

    async def add_crash(self, row: Sequence[object]) -> None:
        """One failure; the values are in the table's order."""
        await self._write("INSERT INTO crashes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)

    async def crashes(self, deployment: str, limit: int = 100) -> Sequence[Mapping[str, object]]:
        """The newest failures of a deployment, oldest first."""
        names = ("deployment", "at", "boot", "generation", "plan", "rung", "code", "fault", "ran_for", "action", "text")
        query = f"SELECT {', '.join(names)} FROM crashes WHERE deployment = ? ORDER BY rowid DESC LIMIT ?"  # noqa: S608
        return [dict(zip(names, r, strict=True)) for r in reversed(await self._read(query, (deployment, limit)))]

    # devices

    async def devices(self, deployment: str) -> Sequence[Device]:
        """The accelerators on which this deployment last proved itself; none for the CPU, or when it never did."""
        rows = await self._read("SELECT devices FROM devices WHERE deployment = ?", (deployment,))
        try:
            return tuple(Device.from_dict(data) for data in json.loads(rows[0][0])) if rows else ()
        except (ValueError, KeyError, TypeError, AttributeError):
            return ()  # written by another version: as if it had never run

    async def set_devices(self, deployment: str, devices: Sequence[Device], at: float) -> None:
        await self._write(
            "INSERT OR REPLACE INTO devices VALUES (?, ?, ?)",
            (deployment, json.dumps([device.to_dict() for device in devices]), at),
        )

    # generations

    async def next_generation(self, deployment: str, at_least: int = 1) -> int:
        """A number never used for this deployment before; `at_least` covers what containers' labels show."""
        rows = await self._read("SELECT last FROM generation WHERE deployment = ?", (deployment,))
        number: int = max(at_least, (rows[0][0] if rows else 0) + 1)
        await self._write(
            "INSERT INTO generation VALUES (?, ?) ON CONFLICT (deployment) DO UPDATE SET last = excluded.last",
            (deployment, number),
        )
        return number

    # what engines have shown

    async def proven(self) -> frozenset[str]:
        """Ids of engines that were ready once."""
        return frozenset(r[0] for r in await self._read("SELECT engine FROM proven"))

    async def mark_proven(self, engine: str, at: float) -> None:
        await self._write("INSERT OR REPLACE INTO proven VALUES (?, ?)", (engine, at))

    async def forget_engine(self, engine: str) -> None:
        await self._write("DELETE FROM proven WHERE engine = ?", (engine,))

    async def record_start(self, plan: str, deployment: str, seconds: float, at: float) -> None:
        """How long a start took, from create to ready."""
        await self._write("INSERT INTO starts VALUES (?, ?, ?, ?)", (plan, deployment, seconds, at))

    async def start_seconds(self, plan: str, deployment: str) -> float | None:
        """The longest of the last five starts of this plan, else of this deployment; None when never seen."""
        for column, value in (("plan", plan), ("deployment", deployment)):
            query = f"SELECT seconds FROM starts WHERE {column} = ? ORDER BY at DESC LIMIT 5"  # noqa: S608 - column is ours
            rows = [r[0] for r in await self._read(query, (value,))]
            if rows:
                return float(max(rows))
        return None

    # images

    async def note_pulled(self, image: str, reference: str, at: float) -> None:
        """An image of this id was pulled here by this name."""
        await self._write("INSERT OR REPLACE INTO pulled VALUES (?, ?, ?)", (image, reference, at))

    async def pulled(self) -> Mapping[str, tuple[str, ...]]:
        """The ids of images that were pulled here, each with the names that it was pulled by."""
        found: dict[str, tuple[str, ...]] = {}
        for image, reference in await self._read("SELECT image, reference FROM pulled ORDER BY reference"):
            found[image] = (*found.get(image, ()), reference)
        return found

    async def forget_pulled(self, image: str) -> None:
        """It is here no more."""
        await self._write("DELETE FROM pulled WHERE image = ?", (image,))

    async def pins(self) -> Sequence[PinRow]:
        """All pinned images, by name."""
        return [
            PinRow(*r) for r in await self._read("SELECT reference, digest, author, at FROM pins ORDER BY reference")
        ]

    async def pin(self, pin: PinRow) -> None:
        """Pin an image's name; a pin that it had is replaced."""
        await self._write(
            "INSERT OR REPLACE INTO pins VALUES (?, ?, ?, ?)", (pin.reference, pin.digest, pin.author, pin.at)
        )

    async def unpin(self, reference: str) -> bool:
        """Forget a pin; False when there was none."""
        return await self._write("DELETE FROM pins WHERE reference = ?", (reference,)) > 0

    # the routing table's revision

    async def revision(self, at_least: int) -> int:
        """A revision above every earlier one: the gateway refuses to go back."""
        rows = await self._read("SELECT value FROM meta WHERE key = 'revision'")
        number = max(at_least, (int(rows[0][0]) if rows else 0) + 1)
        await self._write("INSERT OR REPLACE INTO meta VALUES ('revision', ?)", (str(number),))
        return number

    # the journal

    async def append(self, events: Sequence[Event]) -> None:
        try:
            await self._db.executemany(
                "INSERT OR REPLACE INTO journal VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", [_row(e) for e in events]
            )
            await self._db.commit()
        except sqlite3.Error as error:
            raise _failed("written", error) from error

    async def journal(self, since: int = 0, limit: int = 1000) -> Sequence[Event]:
        """The newest `limit` entries after `since`, oldest first."""
        rows = await self._read(
            "SELECT sequence, at, host, boot_id, kind, code, text, deployment, evidence FROM journal"
            " WHERE sequence > ? ORDER BY sequence DESC LIMIT ?",
            (since, limit),
        )
        return [_event(r) for r in reversed(rows)]

    async def journal_about(self, deployment: str, limit: int) -> Sequence[Event]:
        """The newest `limit` entries about this deployment or about none, oldest first."""
        rows = await self._read(
            "SELECT sequence, at, host, boot_id, kind, code, text, deployment, evidence FROM journal"
            " WHERE deployment = ? OR deployment IS NULL ORDER BY sequence DESC LIMIT ?",
            (deployment, limit),
        )
        return [_event(r) for r in reversed(rows)]

    async def compact(self) -> int:
        """Drop journal entries beyond the newest `JOURNAL_KEPT`, and starts and crashes beyond a thousand; how many
        entries went."""
        gone = await self._write(
            "DELETE FROM journal WHERE sequence <= (SELECT MAX(sequence) FROM journal) - ?", (JOURNAL_KEPT,)
        )
        for table in ("starts", "crashes"):
            await self._write(
                f"DELETE FROM {table} WHERE rowid NOT IN (SELECT rowid FROM {table} ORDER BY at DESC LIMIT 1000)"  # noqa: S608
            )
        return gone


def _row(event: Event) -> tuple[object, ...]:
    return (
        event.sequence,
        event.at,
        event.host,
        event.boot_id,
        event.kind,
        event.code,
        event.text,
        event.deployment,
        json.dumps(dict(event.evidence)),
    )


def _event(row: Any) -> Event:
    evidence: Mapping[str, object] = json.loads(row[8])
    return Event(row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7], evidence)


async def _connect(path: Path) -> aiosqlite.Connection:
    # the journal is for the daemon's own group of people: nobody else may read it
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    db = await aiosqlite.connect(path)
    try:
        await db.execute("PRAGMA journal_mode = WAL")
        await db.execute("PRAGMA synchronous = FULL")
        await db.executescript(_SCHEMA)
        # a page that is damaged further in shows here, and not in the middle of something
        problems = [row[0] for row in await db.execute_fetchall("PRAGMA quick_check(1)")]
        if problems != ["ok"]:
            raise sqlite3.DatabaseError(f"{_MALFORMED}: {problems[0]}")
        await db.execute("INSERT OR IGNORE INTO meta VALUES ('schema', ?)", (str(SCHEMA_VERSION),))
        await db.commit()
    except BaseException:
        await db.close()
        raise
    return db


_MALFORMED = "database disk image is malformed"


def _corrupt(error: sqlite3.Error) -> bool:
    """Whether the file itself is bad, and not the moment."""
    code = getattr(error, "sqlite_errorcode", None)
    primary = None if code is None else code & 0xFF
    return primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or _MALFORMED in str(error)


def _failed(what: str, error: sqlite3.Error) -> DatabaseFailed:
    return DatabaseFailed(
        f"the state database cannot be {what}: {error}",
        hint="look at the free space of the state folder (`df`), and at who else has the file open (`lsof`)",
    )


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
