"""Half an hour of everything at once, and then nothing is left of it: real engines, traffic, and a restless person.

`OUTRIDER_SOAK_MINUTES` is how long (30; `make soak` runs this file alone). The daemon writes down each call that
blocks its event loop (`watched.py`). What was there before and after is printed, and written to
`.cache/endurance/soak.json`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.endurance import blocking
from tests.endurance.census import Census, at_rest, rss, told
from tests.endurance.life import Hand, hand
from tests.endurance.watched import VARIABLE, Blocked
from tests.models import generate as g
from tests.models.tokenizer import recital
from tests.podman_fixture import run_apart
from tests.stack.stack import Stack
from tests.stack_fixture import MakeStack

MINUTES = float(os.environ.get("OUTRIDER_SOAK_MINUTES", "30"))
pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(int(MINUTES * 60 + 900))]
WARM = min(60.0, MINUTES * 10)
"""Seconds of the same before the first count."""
ROOM = {
    "daemon_rss": 32 << 20,  # the journal's last 2,000 entries, 720 readings, pages of SQLite, arenas of threads
    "gateway_rss": 16 << 20,
    "daemon_threads": 4,  # of pools that have a limit, and had not all been needed at once
    "daemon_fds": 4,  # connections kept for reuse
    "gateway_threads": 4,  # of the one pool that writes its table: a write as another ends takes one more, up to six
    "gateway_fds": 8,
    "daemon_tasks": 1,  # the request that asks
    "rows": 4,  # one for each deployment whose engine was killed and is watched for that
    "history": 1 << 30,
}
LATE = 8 << 20
"""Bytes that the daemon may grow by in the second half: what is kept up to a number is full by then."""
FULL = 20.0
"""Minutes after which it is."""
SERVED = ("chat", "draft")
"""Their engines are never killed: each of their requests must end well."""
KILLED = "killed"
CHURN = "churn"
KILL_EVERY = 45.0
"""Seconds: three ends within thirty (ten minutes at a twentieth) would be a reason to run it otherwise."""
PATIENT = httpx.Timeout(60, read=120)


class Soak:
    """What goes on. `counts` says how often, `wrong` what should not have been."""

    def __init__(self, stack: Stack, one: Hand, seconds: float) -> None:
        self.stack = stack
        self.one = one
        self.end = time.monotonic() + seconds
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.memory: list[int] = []
        """The daemon's resident bytes now and then."""
        self.random = random.Random(5)

    async def go_on(self, pause: float, work: Callable[[], Awaitable[None]]) -> None:
        """`work` again and again, with pauses of about `pause` s; what it raises is something wrong."""
        while time.monotonic() < self.end:
            try:
                await work()
            except Exception as error:
                self.wrong.append(f"{work.__name__}: {type(error).__name__}: {error}"[:500])
            await asyncio.sleep(pause * self.random.uniform(0.5, 1.5))

    # traffic

    def _body(self, model: str, tokens: int, stream: bool) -> dict[str, Any]:
        asked = {"messages": [{"role": "user", "content": "x"}], "max_tokens": tokens, "temperature": 0}
        return {"model": model, "stream": stream, **asked}

    async def chat(self) -> None:
        model, tokens = self.random.choice(SERVED), self.random.randint(1, 60)
        answer = await self.one.traffic.post("/chat/completions", json=self._body(model, tokens, False))
        self.counts[f"chat {answer.status_code}"] += 1
        if answer.status_code != 200 or answer.json()["choices"][0]["message"]["content"] != recital(tokens):
            self.wrong.append(f"{model}: {answer.status_code} {answer.text[:200]}")

    async def stream(self) -> None:
        model, tokens = self.random.choice(SERVED), self.random.randint(20, 300)
        text, done, last = "", False, ""
        async with self.one.traffic.stream(
            "POST", "/chat/completions", json=self._body(model, tokens, True), timeout=PATIENT
        ) as answer:
            async for line in answer.aiter_lines():
                last = line or last
                done |= line == "data: [DONE]"
                if line.startswith("data: {"):
                    for choice in json.loads(line[6:]).get("choices", ()):
                        text += choice["delta"].get("content") or ""
        self.counts["stream"] += 1
        if not done or text != recital(tokens):
            self.wrong.append(f"stream of {model}: done {done}, {len(text)} of {tokens} characters, {last[:200]}")

    async def leave(self) -> None:
        """A client that goes in the middle of an answer."""
        async with self.one.traffic.stream(
            "POST", "/chat/completions", json=self._body("chat", 1500, True), timeout=PATIENT
        ) as answer:
            async for _ in answer.aiter_bytes():
                break
        self.counts["left"] += 1

    async def nonsense(self) -> None:
        unknown = await self.one.traffic.post("/chat/completions", json=self._body("nobody", 5, False))
        broken = await self.one.traffic.post("/chat/completions", content=b"{", headers={"content-type": "text/json"})
        self.counts[f"nonsense {unknown.status_code} {broken.status_code}"] += 1
        assert (unknown.status_code, broken.status_code) == (404, 400)

    async def to_the_killed(self) -> None:
        """Requests of a model whose engine is killed now and then: they may be lost, but they end."""
        with suppress(httpx.HTTPError):
            answer = await self.one.traffic.post("/chat/completions", json=self._body(KILLED, 30, False))
            self.counts[f"{KILLED} {answer.status_code}"] += 1

    # a person

    async def look(self) -> None:
        for path in ("deployments", "models", "health", "issues", "engines", "host", "telemetry", "images", "jobs"):
            assert (await self.one.control.get(f"/api/v1/{path}")).status_code == 200, path
        assert (await self.one.control.get("/metrics")).status_code == 200
        self.counts["looked"] += 1

    async def weigh(self) -> None:
        assert self.stack.daemon is not None
        self.memory.append(rss(self.stack.daemon.pid))

    async def churn(self) -> None:
        await self.one.want(CHURN, "running")
        if self.random.random() < 0.3:
            await asyncio.sleep(self.random.uniform(0, 0.5))  # called off on the way
        else:
            await self.one.until(CHURN, "ready")
        await self.one.want(CHURN, "stopped")
        await self.one.until(CHURN, "stopped")
        self.counts["started and stopped"] += 1

    async def meddle(self) -> None:
        name = self.random.choice(SERVED)
        what = self.random.choice(["restart", "apply", "reload", "hangup", "drain"])
        self.counts[what] += 1
        if what in ("restart", "apply"):
            await self.one.control.post(f"/api/v1/deployments/{name}/{what}")
        elif what == "reload":
            await self.one.control.post("/api/v1/reload")
        elif what == "hangup":
            assert self.stack.daemon is not None
            self.stack.daemon.send_signal(signal.SIGHUP)
        else:  # nobody asks this one, so nobody is refused
            await self.one.control.post(f"/api/v1/deployments/{KILLED}/drain")
            await self.one.want(KILLED, "running")
        await self.one.until(name, "ready")

    async def kill(self) -> None:
        view = await self.one.until(KILLED, "ready")
        os.kill(view["engine"]["pid"], signal.SIGKILL)
        self.counts["killed"] += 1

    async def run(self) -> None:
        work = [(0.3, self.chat), (0.3, self.chat), (0.5, self.stream), (0.5, self.stream), (2.0, self.leave)]
        work += [(2.0, self.nonsense), (0.5, self.to_the_killed), (2.0, self.look), (1.0, self.churn)]
        work += [(6.0, self.meddle), (KILL_EVERY, self.kill), (60.0, self.weigh)]
        await asyncio.gather(*(self.go_on(pause, one) for pause, one in work))
        for name in (*SERVED, KILLED):
            await self.one.until(name, "ready")
        await self.one.until(CHURN, "stopped")


def test_a_long_run_of_everything_leaves_nothing_behind(
    make_stack: MakeStack, test_models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "blocked.jsonl"
    stack = make_stack(environ={VARIABLE: str(record)}, gateway=False)
    stack.module = "tests.endurance.watched"
    stack.define("chat", test_models / g.TARGET, method="none", parallel=2)
    stack.define("draft", test_models / g.TARGET_TWO, drafter=test_models / g.DFLASH, method="dflash", parallel=2)
    for name in (KILLED, CHURN):
        stack.define(name, test_models / g.TARGET, method="none")

    async def soak(seconds: float) -> Soak:
        async with hand(stack) as one:
            made = Soak(stack, one, seconds)
            await made.run()
            made.counts.update({f"journal: {code}": n for code, n in one.codes.items()})
            return made

    with stack:
        stack.module = "api.cli"
        stack.start_gateway()
        stack.start(*SERVED, KILLED)
        run_apart(soak(WARM))
        before = Census.of(stack)
        done = run_apart(soak(MINUTES * 60))
        after = at_rest(stack, before, ROOM)
        calls = Blocked.read(record)
        seen: dict[str, Any] = {
            "minutes": MINUTES,
            "counts": dict(sorted(done.counts.items())),
            "looks": blocking.looks(calls),
        }
        seen["memory"] = dict(enumerate(done.memory))
        with capsys.disabled():
            print()
            print(told("soak", before, after, blocking_calls=len(calls), wrong=len(done.wrong), **seen))
            print("  " + ", ".join(f"{what} {n}" for what, n in sorted(done.counts.items())))
            print("  daemon's MB, once a minute: " + " ".join(f"{size / 1e6:.0f}" for size in done.memory))
        assert done.wrong == []
        assert after.beyond(before, ROOM) == {}
        if MINUTES >= FULL:
            assert done.memory[-1] - done.memory[len(done.memory) // 2] < LATE, "the daemon's memory comes to rest"
        assert blocking.faults(calls) == [], "nothing blocks the event loop"
        logged = stack.log("daemon")
        assert not [w for w in ("round_crashed", "step_crashed", "never retrieved", "loops_stuck") if w in logged]
        assert len(stack.containers()) == len(SERVED) + 1
