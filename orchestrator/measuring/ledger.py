"""Where observations are kept: a database of their own. A damaged one loses what was learned, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiosqlite
import structlog

from orchestrator.measured import Ran, Refuted
from orchestrator.measuring import ran as headings
from orchestrator.measuring.learned import Decoding, First, Refutation, Start

log = structlog.get_logger("measuring")
SCHEMA = 1
STARTS_KEPT = 20
"""Starts kept of one combination and driver."""
DECODINGS_KEPT = 50
MOST = 5_000
"""Rows of each kind, whatever combinations there are."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS starts (
    engine TEXT PRIMARY KEY, ran TEXT NOT NULL, driver TEXT, image TEXT NOT NULL, context INTEGER NOT NULL,
    parallel INTEGER NOT NULL, at REAL NOT NULL, day TEXT NOT NULL, load_s REAL, likely INTEGER, peak INTEGER,
    printed TEXT NOT NULL, void INTEGER NOT NULL, worked INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS starts_by_ran ON starts (ran, at);
CREATE TABLE IF NOT EXISTS decodings (
    ran TEXT NOT NULL, driver TEXT, at REAL NOT NULL, day TEXT NOT NULL, tokens INTEGER NOT NULL,
    seconds REAL NOT NULL);
CREATE INDEX IF NOT EXISTS decodings_by_ran ON decodings (ran, at);
CREATE TABLE IF NOT EXISTS firsts (
    ran TEXT NOT NULL, driver TEXT, at REAL NOT NULL, day TEXT NOT NULL, seconds REAL NOT NULL,
    streams INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS canary_references (
    weights TEXT NOT NULL, version INTEGER NOT NULL, model TEXT NOT NULL, body TEXT NOT NULL, at REAL NOT NULL,
    PRIMARY KEY (weights, version));
CREATE TABLE IF NOT EXISTS canaries (
    ran TEXT NOT NULL, driver TEXT, image TEXT NOT NULL, plan TEXT NOT NULL, engine TEXT NOT NULL,
    passed INTEGER NOT NULL, whole INTEGER NOT NULL, reason TEXT NOT NULL, at REAL NOT NULL, day TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS refuted (
    ran TEXT NOT NULL, driver TEXT, text TEXT NOT NULL, source TEXT NOT NULL, day TEXT NOT NULL, at REAL NOT NULL);
"""
STARTS = (
    "SELECT engine, ran, driver, day, load_s, likely, peak, image, context, parallel, at, printed, worked"
    " FROM starts ORDER BY rowid"
)
"""All starts, the oldest first; a row is read by `start_of`."""
DECODINGS = "SELECT ran, driver, day, tokens, seconds FROM decodings ORDER BY rowid"
"""All stretches of decoding, the oldest first; a row is read by `decoding_of`."""
FIRSTS = "SELECT ran, driver, day, seconds, streams FROM firsts ORDER BY rowid"
"""Times to the first token, the oldest first; a row is read by `first_of`."""
REFUTED = "SELECT ran, driver, text, source, day FROM refuted ORDER BY rowid"
"""What answered wrongly (`orchestrator.canary.records` writes it); a row is read by `refutation_of`."""


@dataclass(frozen=True, slots=True)
class StartRow:
    """One start as it is kept. `printed` are the sizes that the engine printed, by kind."""

    engine: str
    start: Start
    image: str
    context: int
    parallel: int
    at: float
    """Unix seconds when it was ready."""
    printed: Mapping[str, int] = field(default_factory=dict)


class Ledger:
    """The database. What came first is told by the order of rows, for a clock may jump.

    No method raises for a database in trouble: measurements are lost then, and it is logged.
    """

    def __init__(self, db: aiosqlite.Connection | None) -> None:
        self._db = db

    @classmethod
    async def open(cls, path: Path) -> Ledger:
        """Open or create it. One that cannot be read is moved to `*.unreadable`, and a new one begun; where not even
        that can be, nothing is kept."""
        for attempt in range(2):
            try:
                return cls(await _connect(path))
            except (sqlite3.Error, OSError) as error:
                log.warning("measurements_unreadable", path=str(path), error=str(error))
                if attempt or not _damaged(error):
                    break
                await asyncio.to_thread(_set_aside, path)
        return cls(None)

    async def close(self) -> None:
        if self._db is not None:
            await self._db.close()

    # in

    async def started(self, row: StartRow) -> None:
        """An engine is ready."""
        s = row.start
        values = (row.engine, headings.to_text(s.ran), s.driver, row.image, row.context, row.parallel, row.at, s.day)
        await self.put(
            "INSERT OR IGNORE INTO starts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?)",
            (*values, s.load_s, s.likely, s.peak, json.dumps(dict(row.printed)), int(s.worked)),
        )
        await self.put(
            "DELETE FROM starts WHERE ran = ? AND driver IS ? AND rowid NOT IN"
            " (SELECT rowid FROM starts WHERE ran = ? AND driver IS ? ORDER BY rowid DESC LIMIT ?)",
            (values[1], s.driver, values[1], s.driver, STARTS_KEPT),
        )

    async def peaked(self, engine: str, peak: int) -> None:
        """It was seen to take more."""
        await self.put("UPDATE starts SET peak = ? WHERE engine = ? AND NOT void", (peak, engine))

    async def worked(self, engine: str) -> None:
        """It has had as many tokens as it can hold."""
        await self.put("UPDATE starts SET worked = 1 WHERE engine = ?", (engine,))

    async def void(self, engine: str) -> None:
        """It failed or was killed: its memory says nothing. How long it took to be ready still does."""
        await self.put("UPDATE starts SET peak = NULL, void = 1 WHERE engine = ?", (engine,))

    async def decoded(self, decoding: Decoding, at: float) -> None:
        """One request alone was decoded."""
        key = headings.to_text(decoding.ran)
        await self.put(
            "INSERT INTO decodings VALUES (?, ?, ?, ?, ?, ?)",
            (key, decoding.driver, at, decoding.day, decoding.tokens, decoding.seconds),
        )
        await self.put(
            "DELETE FROM decodings WHERE ran = ? AND driver IS ? AND rowid NOT IN"
            " (SELECT rowid FROM decodings WHERE ran = ? AND driver IS ? ORDER BY rowid DESC LIMIT ?)",
            (key, decoding.driver, key, decoding.driver, DECODINGS_KEPT),
        )

    async def first(self, first: First, at: float) -> None:
        """Some streams that were alone had their first token."""
        key = headings.to_text(first.ran)
        values = (key, first.driver, at, first.day, first.seconds, first.streams)
        await self.put("INSERT INTO firsts VALUES (?, ?, ?, ?, ?, ?)", values)
        await self.put(
            "DELETE FROM firsts WHERE ran = ? AND driver IS ? AND rowid NOT IN"
            " (SELECT rowid FROM firsts WHERE ran = ? AND driver IS ? ORDER BY rowid DESC LIMIT ?)",
            (key, first.driver, key, first.driver, DECODINGS_KEPT),
        )

    async def forget(self, model: str | None) -> int:
        """Forget all of a model (None: everything); how many combinations that were."""
        known = {row.start.ran for row in await self.starts()} | {d.ran for d in await self.decodings()}
        known |= {r.ran for r in await self.refutations()} | {f.ran for f in await self.firsts()}
        gone = {ran for ran in known if model in (None, ran.model)}
        for ran in gone:
            key = headings.to_text(ran)
            await self.put("DELETE FROM starts WHERE ran = ?", (key,))
            await self.put("DELETE FROM decodings WHERE ran = ?", (key,))
            await self.put("DELETE FROM firsts WHERE ran = ?", (key,))
            await self.put("DELETE FROM refuted WHERE ran = ?", (key,))
            await self.put("DELETE FROM canaries WHERE ran = ?", (key,))
        await self.put("DELETE FROM canary_references WHERE ? IN (model, '')", (model or "",))
        return len(gone)

    async def compact(self) -> None:
        """Keep all tables bounded, however many combinations there were."""
        for table in ("starts", "decodings", "firsts", "canaries", "canary_references", "refuted"):
            await self.put(
                f"DELETE FROM {table} WHERE rowid NOT IN (SELECT rowid FROM {table} ORDER BY rowid DESC LIMIT ?)",  # noqa: S608 - ours
                (MOST,),
            )

    # out

    async def starts(self) -> Sequence[StartRow]:
        """All starts, the oldest first."""
        return [found for row in await self.rows(STARTS) if (found := start_of(row)) is not None]

    async def decodings(self) -> Sequence[Decoding]:
        """All stretches of decoding, the oldest first."""
        return [found for row in await self.rows(DECODINGS) if (found := decoding_of(row)) is not None]

    async def firsts(self) -> Sequence[First]:
        """All times to the first token, the oldest first."""
        return [found for row in await self.rows(FIRSTS) if (found := first_of(row)) is not None]

    async def of(self, ran: Ran) -> Sequence[StartRow]:
        """The starts of one combination, the oldest first."""
        return [row for row in await self.starts() if row.start.ran == ran]

    async def refutations(self) -> Sequence[Refutation]:
        """All that answered wrongly."""
        return [found for row in await self.rows(REFUTED) if (found := refutation_of(row)) is not None]

    async def rows(self, query: str, values: Sequence[object] = ()) -> list[Any]:
        """What a query finds; nothing where the database is in trouble."""
        if self._db is None:
            return []
        try:
            return list(await self._db.execute_fetchall(query, values))
        except sqlite3.Error as error:
            log.warning("measurements_not_read", error=str(error))
            return []

    async def put(self, query: str, values: Sequence[object] = ()) -> None:
        """One statement; lost where the database is in trouble."""
        if self._db is None:
            return
        try:
            await self._db.execute(query, values)
            await self._db.commit()
        except (sqlite3.Error, OverflowError) as error:  # OverflowError: a number that no column holds
            log.warning("measurement_not_kept", error=str(error))


def start_of(row: Any) -> StartRow | None:
    """A row of `STARTS`; None for what another version wrote, and for what cannot be: SQLite keeps anything in any
    column."""
    ran = headings.from_text(row[1])
    counts = all(value is None or isinstance(value, int) for value in row[5:7])
    if ran is None or not counts or not (row[4] is None or _seconds(row[4])) or not isinstance(row[3], str):
        return None
    try:
        printed = {str(k): int(v) for k, v in json.loads(row[11]).items()}
    except (ValueError, TypeError, AttributeError, OverflowError):
        printed = {}
    return StartRow(
        engine=row[0],
        start=Start(ran, row[2], row[3], row[4], row[5], row[6], bool(row[12]), str(row[7])),
        image=row[7],
        context=row[8],
        parallel=row[9],
        at=row[10],
        printed=printed,
    )


def decoding_of(row: Any) -> Decoding | None:
    """A row of `DECODINGS`; None for what another version wrote, and for what cannot be."""
    ran = headings.from_text(row[0])
    right = isinstance(row[2], str) and isinstance(row[3], int) and _seconds(row[4])
    return Decoding(ran, *row[1:]) if ran is not None and right else None


def first_of(row: Any) -> First | None:
    """A row of `FIRSTS`; None for what another version wrote, and for what cannot be."""
    ran = headings.from_text(row[0])
    right = isinstance(row[2], str) and _seconds(row[3]) and isinstance(row[4], int)
    return First(ran, *row[1:]) if ran is not None and right else None


def refutation_of(row: Any) -> Refutation | None:
    """A row of `REFUTED`; None for what another version wrote, and for what cannot be."""
    ran = headings.from_text(row[0])
    words = all(isinstance(word, str) for word in row[2:5]) and isinstance(row[1], str | None)
    return Refutation(ran, row[1], Refuted(*row[2:5])) if ran is not None and words else None


def _seconds(value: object) -> bool:
    return isinstance(value, float | int) and math.isfinite(value) and value >= 0


async def _connect(path: Path) -> aiosqlite.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    db = await aiosqlite.connect(path)
    try:
        await db.execute("PRAGMA journal_mode = WAL")
        await db.execute("PRAGMA synchronous = NORMAL")  # the last minute may be lost with the power
        await db.executescript(_SCHEMA)
        problems = [row[0] for row in await db.execute_fetchall("PRAGMA quick_check(1)")]
        if problems != ["ok"]:
            raise sqlite3.DatabaseError(f"database disk image is malformed: {problems[0]}")
        await db.execute("INSERT OR IGNORE INTO meta VALUES ('schema', ?)", (str(SCHEMA),))
        await db.commit()
    except BaseException:
        await db.close()
        raise
    return db


def _set_aside(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.replace(path.with_name(f"{path.name}.unreadable"))
    for suffix in ("-wal", "-shm"):
        with contextlib.suppress(OSError):
            path.with_name(path.name + suffix).unlink(missing_ok=True)


def _damaged(error: Exception) -> bool:
    return isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)
