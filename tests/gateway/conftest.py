"""One gateway process per module and path (fast, plain ASGI), shared by the module's tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.gateway import client
from tests.gateway.stack import STARTED, Stack


@pytest_asyncio.fixture(scope="package", loop_scope="package", autouse=True)
async def no_gateway_is_left() -> AsyncIterator[None]:
    """End what gateways a failed test leaves running."""
    yield
    for gateway in STARTED:
        assert gateway.process is not None
        if gateway.process.returncode is None:
            await gateway.kill()


@pytest_asyncio.fixture(scope="package", loop_scope="package", params=["fast", "asgi"])
async def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """A running gateway; tests use models and engines of their own names."""
    options = [] if request.param == "fast" else ["--no-fast-path"]
    started = await Stack.start(tmp_path_factory.mktemp("gw"), "--max-waiting", "3", "--settle-s", "0.3", *options)
    yield started
    assert await started.stop() == 0
    errors = [line for line in started.gateway.log if line.get("level") == "error"]
    # plain ASGI has no other way to cut an answer short
    assert not [line for line in errors if line.get("text") != "ASGI callable returned without completing response."]


@pytest_asyncio.fixture(loop_scope="package", autouse=True)
async def no_connection_is_left() -> AsyncIterator[None]:
    """End what connections a test leaves open."""
    yield
    for left in client.OPEN:
        left.abort()
    client.OPEN.clear()
    await asyncio.sleep(0)
