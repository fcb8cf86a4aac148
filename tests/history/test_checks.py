"""What watches histories notices what it is there for: each rule is broken in the product, and a history tells."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest import mock

import pytest

from orchestrator import steps as steps_module
from orchestrator.admission import Admission
from orchestrator.adopting import Adopter
from orchestrator.demand.desk import Desk
from orchestrator.demand.room_queue import RoomQueue
from orchestrator.engine import Engine
from orchestrator.restarting.climber import Climber
from orchestrator.restarting.ledger import Ledger
from orchestrator.steps import Steps
from orchestrator.stopping.clearing import Clearing
from orchestrator.stopping.quarantine import Quarantine
from orchestrator.views import State
from tests.history import test_found
from tests.history.database import Store
from tests.history.history import Wrong, played

FIRST, MOST = 100, 150
"""The histories that are played until one tells, and how many at most."""


async def nothing(*_: Any, **__: Any) -> None:
    await asyncio.sleep(0)


async def empty(*_: Any, **__: Any) -> bool:
    await asyncio.sleep(0)
    return True


async def new_ledger(store: Any, boot: str) -> Ledger:
    await asyncio.sleep(0)
    return Ledger(store, boot)


async def any_room(self: Admission, engine: str, plan: Any, waits: object = None) -> None:
    await asyncio.sleep(0)
    self.adopt(engine, plan, loading=True)


def moved_behind(self: Steps, engine: Engine) -> None:
    self._d.serving = engine.generation
    engine.state = State.WARMING


def silent(*_: Any) -> None:
    """Does nothing."""


@contextmanager
def without_fit() -> Iterator[None]:
    """Nobody looks whether there is memory."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(Admission, "reserve", any_room))
        stack.enter_context(mock.patch.object(RoomQueue, "_make_room", nothing))
        yield


Breaks = Callable[[], AbstractContextManager[object]]


def put(owner: object, name: str, value: object) -> Breaks:
    """Something else in the place of a part of the product."""
    return lambda: mock.patch.object(owner, name, value)


BROKEN: Mapping[str, tuple[Breaks, str]] = {
    "a transition past the table": (put(Steps, "_promote", moved_behind), r"went to|behind the table"),
    "memory that nobody counts": (without_fit, r"GiB go to|are promised|loaded beside"),
    "memory that has not come back": (put(Clearing, "wait", nothing), r"GiB go to|is not left alone"),
    "a quarantine that nobody is told of": (put(Quarantine, "_show", silent), r"is loaded on|GiB go to"),
    "a quarantine that does not end": (put(Quarantine, "on_sample", silent), r"is still left alone|left alone:"),
    "an orphan": (put(Adopter, "_take_down", silent), r"is nobody's"),
    "a lost intent": (put(Store, "set_desired", nothing), r"is to be \w+, and"),
    "an evicted reservation": (put(steps_module, "emptied", empty), r"is ended under \d+ requests"),
    "a request that nobody hears": (put(Desk, "_call", silent), r"a client still waits"),
    "an eviction that never comes": (put(RoomQueue, "_evict", nothing), r"a client still waits"),
    "an idle model that stays": (put(Desk, "look", nothing), r"nobody has asked for|a client still waits"),
    "a start in spite of a pause": (put(Climber, "_hands_off", silent), r"though it failed and is paused"),
    "a daemon that begins in spite of a pause": (put(Climber, "begin", silent), r"by a daemon that begins"),
    "a call in spite of a pause": (put(Desk, "uncallable", silent), r"is paused: called"),
}
"""By what is broken: how, and what is said of it."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("what", BROKEN)
def test_what_is_broken_is_noticed(what: str) -> None:
    breaking, said = BROKEN[what]
    with breaking():
        for number in range(FIRST, FIRST + MOST):
            try:
                played(number, steps=30 + number % 40)
            except Wrong as wrong:
                told = str(wrong).partition("\nafter:")[0]
                if re.search(said, told):
                    print(f"{what}: noticed in history {number}, the {number - FIRST + 1}. of them")
                    return
    pytest.fail(f"{MOST} histories tell nothing of it")


def test_a_rung_that_a_new_daemon_does_not_know_is_noticed() -> None:
    """Told by hand: it takes many failures, and a death between two engines."""
    with mock.patch.object(Ledger, "open", new_ledger), pytest.raises(Wrong, match=r"which was given up"):
        test_found.test_a_rung_that_was_found_is_not_lost_with_the_daemon()
