"""A person's hand on many deployments at once: start, stop, ask; told by the journal when it is done."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx

from tests.stack.stack import Stack

LIMIT = 120.0


class Hand:
    """One client of the control API and the gateway. Made by `hand`."""

    def __init__(self, stack: Stack, control: httpx.AsyncClient, traffic: httpx.AsyncClient) -> None:
        self.stack = stack
        self.control = control
        self.traffic = traffic
        self.seen: dict[str, list[Any]] = defaultdict(list)
        """The journal's entries since this hand's first one, by deployment."""
        self.codes: dict[str, int] = defaultdict(int)
        self._news = asyncio.Event()

    async def follow(self) -> None:
        """Read the journal for ever; begun again when a daemon goes and another comes."""
        last = 0
        while True:
            with suppress(httpx.HTTPError):
                url = f"/api/v1/events?follow=true&since={last}"
                async with self.control.stream("GET", url, timeout=httpx.Timeout(30, read=None)) as answer:
                    async for line in answer.aiter_lines():
                        if line.startswith("data:"):
                            event = json.loads(line[5:])
                            last = max(last, event["sequence"])
                            self._take(event)
            await asyncio.sleep(0.1)

    def _take(self, event: Any) -> None:
        self.codes[event["code"]] += 1
        if event["deployment"] is not None:
            self.seen[event["deployment"]].append(event)
            del self.seen[event["deployment"]][:-500]
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def want(self, name: str, state: str) -> None:
        answer = await self.control.put(f"/api/v1/deployments/{name}/desired", json={"state": state})
        assert answer.status_code < 300, answer.text

    async def view(self, name: str) -> Any:
        return (await self.control.get(f"/api/v1/deployments/{name}")).json()

    async def until(self, name: str, *states: str, limit: float = LIMIT) -> Any:
        """Wait until the deployment is in one of the states: looked at whenever the journal has news of anybody."""
        async with asyncio.timeout(limit):
            while True:
                news = self._news
                view = await self.view(name)
                if view["state"] in states and (states == ("stopped",)) == (not view["engines"]):
                    return view
                with suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await news.wait()

    async def ask(self, name: str, tokens: int = 8) -> str:
        body = {
            "model": name,
            "messages": [{"role": "user", "content": "x"}],
            "max_tokens": tokens,
            "temperature": 0,
        }
        answer = await self.traffic.post("/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["message"]["content"])


@asynccontextmanager
async def hand(stack: Stack) -> AsyncIterator[Hand]:
    """A hand that reads along, for the length of an `async with`."""
    transport = httpx.AsyncHTTPTransport(uds=str(stack.paths.control_socket))
    async with (
        httpx.AsyncClient(transport=transport, base_url="http://outrider", timeout=60) as control,
        httpx.AsyncClient(base_url=stack.base_url, timeout=LIMIT) as traffic,
    ):
        made = Hand(stack, control, traffic)
        reading = asyncio.create_task(made.follow())
        try:
            yield made
        finally:
            reading.cancel()
            await asyncio.wait([reading])
