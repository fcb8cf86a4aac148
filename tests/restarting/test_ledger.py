"""The crash ledger on a disk that has trouble: each failure is one row, and no word of a person is lost.

A database that fails at a certain write, and one that takes its time, cannot be had from a real one on demand.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.automation import Automation
from orchestrator.clock import SystemClock
from orchestrator.deployment import Deployment
from orchestrator.errors import DatabaseFailed, EngineFailed
from orchestrator.restarting.climber import Climber
from orchestrator.restarting.ledger import Ledger
from orchestrator.restarting.standing import Standing
from orchestrator.timing import Timing
from tests.daemon.world import a_plan, an_entry


class Book:
    """A store that keeps what it is given, fails at some rows, and waits at the gate."""

    def __init__(self) -> None:
        self.rows: list[Sequence[object]] = []
        self.standing: str | None = None
        self.fails_at = -1
        self.gate = asyncio.Event()
        self.gate.set()
        self.at_the_gate = asyncio.Event()

    async def keep_standing(self, deployment: str, text: str, at: float) -> None:
        self.at_the_gate.set()
        await self.gate.wait()
        self.standing = text

    async def forget_standing(self, deployment: str) -> None:
        self.standing = None

    async def add_crash(self, row: Sequence[object]) -> None:
        if len(self.rows) == self.fails_at:
            self.fails_at = -1
            raise DatabaseFailed("the disk is full")
        self.rows.append(row)


def climber(book: Book) -> Climber:
    context: Any = SimpleNamespace(
        clock=SystemClock(),
        timing=Timing(),
        ledger=Ledger(book, "boot"),  # type: ignore[arg-type]
        issues=SimpleNamespace(close=lambda *_, **__: False, open=lambda *_, **__: None),
        journal=SimpleNamespace(emit=lambda *_, **__: None),
        automation=Automation(),
    )
    return Climber(Deployment(an_entry(), "h"), context)


def fail(one: Climber, generation: int) -> None:
    engine: Any = SimpleNamespace(plan=a_plan(), generation=generation)
    one.record(EngineFailed("engine_crashed", "it crashed"), ran_for=1.0, engine=engine)


async def test_a_disk_that_fails_between_two_rows_has_each_once() -> None:
    book = Book()
    one = climber(book)
    fail(one, 1)
    fail(one, 2)
    book.fails_at = 1
    with pytest.raises(DatabaseFailed):
        await one.save()
    fail(one, 3)
    await one.save()
    assert [row[3] for row in book.rows] == [1, 2, 3]
    await one.save()
    assert len(book.rows) == 3


async def test_what_a_person_says_while_it_is_written_is_written_next() -> None:
    book = Book()
    one = climber(book)
    fail(one, 1)
    book.gate.clear()
    writing = asyncio.create_task(one.save())
    await book.at_the_gate.wait()
    one.up("start", "somebody")
    book.gate.set()
    await writing
    assert Standing.from_dict(json.loads(book.standing or "")) != Standing(), "what it was when the write began"
    await one.save()
    assert book.standing is None, "from the top again, also for the next daemon"
