"""What passes through: routing, heads, streams, counts; on the fast path and on the plain one."""

from __future__ import annotations

import pytest

from tests.gateway.stack import Stack, chat

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def test_chat_goes_to_the_engine_and_back(stack: Stack) -> None:
    (engine,) = await stack.serve("plain")
    response = await stack.ask(chat("plain"))
    assert response.status == 200
    assert response.json()["choices"][0]["message"]["content"] == "x" * 8
    assert response.headers["x-outrider-host"] == "testhost"
    assert response.headers["x-outrider-engine"] == "plain-0-3"
    assert response.headers["x-outrider-plan"] == "ab" * 32
    assert response.headers["x-outrider-method"] == "dflash"
    assert response.headers["date"] != "never"
    assert "server" not in response.headers
    assert "keep-alive" not in response.headers
    assert engine.requests[0].json == chat("plain")
    counts = await stack.counts("plain")
    assert (counts["arrivals"], counts["completed"], counts["in_flight"]) == (1, 1, 0)
