"""A real engine is killed (SIGKILL to its process), idle and while it streams: seen at once, told to clients, and back
after the pauses of the rule."""

from __future__ import annotations

import json
import os
import signal
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from orchestrator.timing import Timing
from tests.models import generate as g
from tests.models.tokenizer import recital
from tests.restarting.pauses import assert_pauses
from tests.stack.stack import Stack
from tests.stack_fixture import MakeStack
from tests.telling.golden import told
from tests.waiting import until_sync

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]
SEEN = 2.0
"""Seconds from the kill until the daemon has it in its journal, at most: at the real time scale."""

LONG = 16_000
"""Tokens of a stream that goes on while the others ask and the engine is killed: 4 s of an idle machine."""


def kill(stack: Stack, name: str = "m") -> tuple[float, int]:
    """SIGKILL to the engine's process, as the host sees it: when, by the clock of the journal, and which."""
    pid = stack.deployment(name)["engine"]["pid"]
    at = time.time()  # noqa: TID251 - the journal's clock
    os.kill(pid, signal.SIGKILL)
    return at, pid


def last(stack: Stack, code: str, name: str = "m") -> Any:
    """The newest event of this code, once there is one."""
    return next((event for event in reversed(stack.events(name)) if event["code"] == code), None)


def back(stack: Stack, generation: int) -> Any:
    """The deployment, once an engine of this generation serves."""

    def there() -> Any:
        view = stack.deployment("m")
        serves = view["state"] == "ready" and view["engine"]["generation"] == generation
        return view if serves else None

    return until_sync(there, 60, f"m-{generation} serves")


def assert_seen_at_once(stack: Stack, killed: float, pid: int) -> None:
    ended = last(stack, "engine_ended")
    print(f"seen after {ended['at'] - killed:.3f} s")
    assert 0 <= ended["at"] - killed < SEEN
    assert ended["evidence"]["pid"] == pid
    failure = last(stack, "failed")["evidence"]
    assert (failure["code"], failure["exit_code"], failure["fault"]) == ("engine_killed", 137, "crash")


def test_an_idle_engine_that_is_killed(make_stack: MakeStack, test_models: Path) -> None:
    """At the real time scale."""
    stack = make_stack(scale=1.0)
    stack.define("m", test_models / g.TARGET, method="none")
    with stack:
        stack.start("m")
        killed, pid = kill(stack)
        until_sync(lambda: last(stack, "failed"), 60, "the failure is told")
        assert_seen_at_once(stack, killed, pid)
        held = stack.text("m", 20)
        assert held == recital(20), "who asks while none runs is answered by the next"
        back(stack, 2)
        assert_pauses(stack, Timing())
        told(stack, "m", "01-killed-idle")


class Reader:
    """One streamed chat, read to its end whatever comes."""

    def __init__(self, stack: Stack, tokens: int) -> None:
        self._url = f"{stack.base_url}/chat/completions"
        self._body = {
            "model": "m",
            "messages": [{"role": "user", "content": "x"}],
            "max_tokens": tokens,
            "temperature": 0,
            "stream": True,
        }
        self.events: list[str] = []

    def read(self) -> list[str]:
        with httpx.stream("POST", self._url, json=self._body, timeout=60) as answer:
            assert answer.status_code == 200
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    self.events.append(line.removeprefix("data: "))
        return self.events


def test_an_engine_that_is_killed_while_it_streams(make_stack: MakeStack, test_models: Path) -> None:
    """At the real time scale, with one slot: the stream that runs is broken off, and what waits behind it, asked as a
    stream or not, has had no byte yet and is the next engine's."""
    stack = make_stack(scale=1.0)
    stack.define("m", test_models / g.TARGET, method="none", parallel=1, context=LONG + 512)
    with stack, ThreadPoolExecutor(4) as clients:
        stack.start("m")
        reader = Reader(stack, LONG)
        broken = clients.submit(reader.read)
        until_sync(lambda: len(reader.events) > 5, 30, "it streams")
        waiting: Future[str] = clients.submit(stack.text, "m", 20)
        streamed = clients.submit(Reader(stack, 20).read)
        until_sync(lambda: stack.deployment("m")["in_flight"] == 3, 20, "two wait behind it")
        killed, pid = kill(stack)
        events = broken.result(60)
        assert time.time() - killed < SEEN, "the client is told at once"  # noqa: TID251 - the journal's clock
        assert "[DONE]" not in events
        errors = [json.loads(event)["error"] for event in events if '"error"' in event]
        assert [error["code"] for error in errors] == ["upstream_lost"], "one error, and it is the last"
        assert events[-1].startswith('{"error"')
        assert waiting.result(60) == recital(20)
        *answer, end = streamed.result(60)
        assert end == "[DONE]"
        assert "".join(json.loads(part)["choices"][0]["delta"].get("content") or "" for part in answer) == recital(20)
        back(stack, 2)
        assert_seen_at_once(stack, killed, pid)
        assert_pauses(stack, Timing())
        told(stack, "m", "01-killed-mid-stream")


@pytest.mark.slow
def test_the_pauses_between_kills_are_the_rules(make_stack: MakeStack, test_models: Path) -> None:
    """At a tenth of the time scale: soon, ten times later, then the next rung, which begins soon again."""
    stack = make_stack(scale=0.1, gateway=False)
    stack.define("m", test_models / g.TARGET, method="none", parallel=2)
    with stack:
        stack.start("m")
        for generation in (2, 3, 4):
            kill(stack)
            back(stack, generation)
        view = stack.deployment("m")
        assert view["rung"]["change"] == "fewer_slots"
        assert (view["engine"]["parallel"], view["rung"]["left"][0]["failures"]) == (1, 3)
        actions = [e["evidence"]["action"] for e in stack.events("m") if e["code"] == "failed"]
        assert actions == ["retry_same", "retry_same", "next_rung"]
        assert_pauses(stack, Timing().scaled(0.1))
        told(stack, "m", "01-killed-three-times")
