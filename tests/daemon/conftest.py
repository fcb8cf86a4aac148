"""A small world for the daemon's parts: see `tests.daemon.world`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog

from tests.blocking_fixture import nothing_blocks
from tests.daemon.world import World

__all__ = ["nothing_blocks"]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    with structlog.testing.capture_logs():
        made = await World.open(tmp_path)
        yield made
        await made.close()
