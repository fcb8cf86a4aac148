"""An event loop whose time is made up: it leaps to the next thing that is due, so that hours pass in milliseconds.

What runs on it must not wait for anything real. Work for threads is done at once, in place: a thread would take real
time, and the loop would leap over it.
"""

from __future__ import annotations

import asyncio
import contextvars
import datetime as dt
import selectors
import weakref
from collections.abc import Callable
from typing import Any

HOT = 20_000
"""Turns of the loop without time passing at which something goes round and round."""
START = 1_000.0
WALL = 1_800_000_000.0
"""A moment in January 2027, as Unix time."""


OWNER: contextvars.ContextVar[int] = contextvars.ContextVar("owner", default=0)
"""Which daemon a task belongs to (0: none): a killed daemon's tasks are found by it."""


class HotLoop(AssertionError):
    """Something keeps the loop busy and waits for nothing."""


class _Leaping(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self._turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            self._turns += 1
            if self._turns > HOT:
                raise HotLoop(f"{HOT} turns without time passing")
            return ready
        if timeout is None:
            raise RuntimeError("nothing will ever happen again")
        self._turns = 0
        self.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its `time()` starts at `START`."""

    def __init__(self) -> None:
        self._leaping = _Leaping()
        super().__init__(self._leaping)
        self._clock_resolution = 1e-6
        self._owners: weakref.WeakKeyDictionary[asyncio.Task[Any], int] = weakref.WeakKeyDictionary()
        self.set_task_factory(self._made)

    def _made(self, loop: asyncio.AbstractEventLoop, coro: Any, **more: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, **more)
        self._owners[task] = OWNER.get()
        return task

    def owned(self, owner: int) -> list[asyncio.Task[Any]]:
        """The tasks of one daemon that have not ended."""
        return [task for task in asyncio.all_tasks(self) if self._owners.get(task) == owner]

    def time(self) -> float:
        return self._leaping.now

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """In place: see the module."""
        future: asyncio.Future[Any] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


class VirtualClock:
    """The product's clock on that loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now(self) -> float:
        return self._loop.time()

    def wall(self) -> float:
        return WALL + self._loop.time()

    def today(self) -> dt.date:
        return dt.datetime.fromtimestamp(self.wall(), tz=dt.UTC).date()
