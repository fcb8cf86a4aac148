"""Waiting for conditions, with a limit: what tests use instead of sleeping."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")
STEP = 0.02
_NEVER = threading.Event()


@overload
async def until(condition: Callable[[], Awaitable[T]], limit: float, what: str = "condition") -> T: ...
@overload
async def until(condition: Callable[[], T], limit: float, what: str = "condition") -> T: ...
async def until(condition: Callable[[], Any], limit: float, what: str = "condition") -> Any:
    """Poll `condition` (plain or async) until it is true; its value. Fails after `limit` seconds."""
    end = time.monotonic() + limit
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if time.monotonic() >= end:
            raise AssertionError(f"{what} did not come true within {limit} s (last value: {value!r})")
        await asyncio.sleep(STEP)


def until_sync(condition: Callable[[], T], limit: float, what: str = "condition") -> T:
    """`until` for tests without an event loop."""
    end = time.monotonic() + limit
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= end:
            raise AssertionError(f"{what} did not come true within {limit} s (last value: {value!r})")
        _NEVER.wait(STEP)
