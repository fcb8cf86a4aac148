"""Engines as processes, and the desk that asks them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from tests.blocking_fixture import nothing_blocks
from tests.canary.asked import Desk, a_desk
from tests.engine.running import Running, running

__all__ = ["nothing_blocks"]
Start = Callable[..., Running]


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    """A canary that knows nothing yet."""
    async with a_desk(tmp_path) as found:
        yield found


@pytest.fixture
def start(xllamacpp_path: Path, tmp_path: Path) -> Iterator[Start]:
    """Start a real engine with these arguments, in a folder of its own, and wait until it is healthy."""
    with contextlib.ExitStack() as stack:

        def begin(*arguments: str | Path, slots: int = 2) -> Running:
            folder = tmp_path / f"engine-{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            words = [*arguments, "-c", str(2048 * slots), "-np", str(slots), "--metrics", "--slots", "--jinja"]
            return stack.enter_context(running(xllamacpp_path, folder, words))

        yield begin
