"""Work that goes on to its end although whoever waits for it is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def finished(work: Awaitable[T]) -> T:
    """`work`, run to its end even when this task is cancelled meanwhile; then the cancellation goes on.

    For what is not taken back by no longer waiting: Podman does not hear of it, so a create that is
    abandoned leaves a container that nobody knows of, and a thread still works on its files.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # looked at, so that it is not reported as never retrieved
        raise
