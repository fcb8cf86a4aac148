"""The watch over serving engines: what stalls is found by two witnesses in its bound, and what works is left alone.

Wedges, livelocks and stalls of a compiler cannot be had from a real engine in a test's time: there the scriptable
one stands in. A stopped process is a real one.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from orchestrator.timing import Timing
from tests.fakes.engine import ALPHABET, Script
from tests.models import generate as g
from tests.stack.stack import Stack
from tests.stack_fixture import MakeStack
from tests.telling.golden import quiet, told
from tests.waiting import until_sync

SCALE = 0.05
TIMING = Timing().scaled(SCALE)
BOUND = TIMING.stall + 2 * TIMING.health_period
BUSY_MACHINE = 3.0
"""Seconds that a loaded machine may add."""


class Asking:
    """A request that is in flight while the test goes on."""

    def __init__(self, stack: Stack, *, tokens: int = 400, prompt: str = "x", stream: bool = True) -> None:
        self.text = ""
        self.failed = False
        self._stack = stack
        body = {
            "model": "m",
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": tokens,
            "stream": stream,
        }
        self.thread = threading.Thread(target=self._ask, args=(body,), daemon=True)
        self.thread.start()

    def _ask(self, body: dict[str, object]) -> None:
        url = f"{self._stack.base_url}/chat/completions"
        try:
            with httpx.stream("POST", url, json=body, timeout=120) as answer:
                for part in answer.iter_text():
                    self.text += part
        except httpx.HTTPError:
            self.failed = True

    def done(self) -> bool:
        return not self.thread.is_alive()


class SlowReader:
    """A client that reads a few bytes a second of a stream, with the least room in its kernel."""

    def __init__(self, stack: Stack, tokens: int) -> None:
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": tokens, "stream": True}
        said = json.dumps(body).encode()
        self.read = 0
        self._over = threading.Event()
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        self._socket.settimeout(60)
        self._socket.connect(("127.0.0.1", stack.gateway_port))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(said)}\r\n\r\n"
        self._socket.sendall(head.encode() + said)
        assert self._socket.recv(12) == b"HTTP/1.1 200"
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        while not self._over.wait(0.25):
            self.read += len(self._socket.recv(2))

    def leave(self) -> None:
        self._over.set()
        self.thread.join()
        self._socket.close()


@pytest.fixture
def fake(make_stack: MakeStack, fake_engine_image: str, test_models: Path) -> Iterator[tuple[Stack, Script]]:
    stack = make_stack(scale=SCALE)
    script = stack.define_fake("m", fake_engine_image, test_models / g.TARGET, parallel=2)
    with stack:
        stack.start("m")
        yield stack, script


def found(stack: Stack, code: str) -> list[Any]:
    return [e for e in stack.events("m") if e["code"] == code]


def stalled(stack: Stack, since: float) -> Any:
    """The verdict, when it comes in its bound."""
    event = until_sync(lambda: found(stack, "engine_stalled"), BOUND + BUSY_MACHINE + 5, "the stall is found")[0]
    assert time.monotonic() - since <= BOUND + BUSY_MACHINE
    return event


def witnesses(event: Any) -> set[str]:
    """The signs whose time had passed their limit."""
    evidence = event["evidence"]
    limits = {k.removesuffix("_s_limit"): limit for k, limit in evidence.items() if k.endswith("_s_limit")}
    return {sign for sign, limit in limits.items() if evidence[f"{sign}_s"] >= limit}


STORY: dict[str, Any] = {
    "without": ("busy", "backing_off", "not_ready", "stop_escalated"),
    # which of the signs were past their limit at the very look that found it is chance
    "words": {
        r"\(no client [^)]*\)|\(its own [^)]*\)|\(a token [^)]*\)": "(SIGNS)",
        r"seen: limit \d.*": "seen: SIGNS",
    },
}


BUSY: dict[str, str] = {r"seen: .*": "seen: SIGNS"}


def shown(stack: Stack) -> Any:
    """The verdict *live*; None before the first look."""
    return stack.deployment("m")["engine"]["verdicts"].get("live")


def untouched(stack: Stack) -> None:
    """Nothing was done to the engine, and nothing is said against it."""
    assert not {"engine_stalled", "engine_unresponsive", "engine_ended", "failed"} & set(stack.codes("m"))
    view = stack.deployment("m")
    assert view["engine"]["generation"] == 1
    assert view["engine"]["verdicts"]["live"]["holds"] is True


def test_a_stopped_engine_is_found_and_replaced(make_stack: MakeStack, embedded_image: str, test_models: Path) -> None:
    stack = make_stack(scale=SCALE)
    stack.define("m", test_models / g.TARGET, method="none")
    with stack:
        pid = stack.start("m")[0]["engine"]["pid"]
        os.kill(pid, signal.SIGSTOP)
        event = stalled(stack, time.monotonic())
        assert len(witnesses(event)) >= 2
        assert "stopped_s" in event["evidence"]
        until_sync(lambda: stack.deployment("m")["state"] == "ready", 30, "another engine serves")
        assert stack.deployment("m")["engine"]["generation"] == 2
        assert stack.text("m", 8) == ALPHABET[:8]
        told(stack, "m", "02-stopped-engine", **STORY)


def test_a_wedge_behind_a_health_path_that_says_ok(fake: tuple[Stack, Script]) -> None:
    stack, script = fake
    script.write(wedge=True)
    asking = Asking(stack)
    event = stalled(stack, time.monotonic())
    assert len(witnesses(event)) >= 2
    assert {"delivery_s", "silent_s"} <= set(event["evidence"])
    until_sync(lambda: "stopped" in stack.codes("m"), 30, "it is gone: else it would go on when it may")
    script.write()
    until_sync(lambda: stack.deployment("m")["state"] == "ready", 30, "another engine serves")
    until_sync(asking.done, 30, "the request came to an end")
    assert "[DONE]" in asking.text, "it was held, and answered by the next engine"
    told(stack, "m", "03-wedged", **STORY)


def test_a_livelock_delivers_nothing_whatever_its_counters_say(fake: tuple[Stack, Script]) -> None:
    stack, script = fake
    script.write(livelock=True)
    asking = Asking(stack)
    event = stalled(stack, time.monotonic())
    assert "delivery" in witnesses(event)
    assert len(witnesses(event)) >= 2
    until_sync(lambda: "stopped" in stack.codes("m"), 30, "it is gone: else it would go on when it may")
    script.write()
    until_sync(lambda: stack.deployment("m")["state"] == "ready", 30, "another engine serves")
    until_sync(asking.done, 30, "the request came to an end")
    told(stack, "m", "05-livelock", **STORY)


# what works, however it looks


@pytest.mark.slow
def test_a_long_prompt_is_no_stall(fake: tuple[Stack, Script]) -> None:
    """Read for half as long again as an engine may be silent; its token counters stand still until the end."""
    stack, script = fake
    seconds = TIMING.stall * 1.5
    script.write(prefill_tps=200, lump_counters=True)
    asking = Asking(stack, tokens=5, prompt="x" * int(200 * seconds))
    until_sync(asking.done, seconds + 20, "the long prompt is answered")
    assert "[DONE]" in asking.text
    untouched(stack)
    told(stack, "m", "04-long-prompt", without=("busy",))


@pytest.mark.slow
def test_an_answer_in_one_piece_is_no_stall(fake: tuple[Stack, Script]) -> None:
    stack, script = fake
    seconds = TIMING.stall * 1.5
    script.write(tps=40, lump_counters=True)
    asking = Asking(stack, tokens=int(40 * seconds), stream=False)
    until_sync(asking.done, seconds + 20, "the answer comes")
    assert "abc" in asking.text
    untouched(stack)


def test_a_kernel_that_is_compiled_at_first_use_is_no_stall(fake: tuple[Stack, Script]) -> None:
    """105 s against a T_stall of 60 s, at the test's scale."""
    stack, script = fake
    seconds = TIMING.stall * 105 / 60
    script.write(first_request_s=seconds)
    asking = Asking(stack, tokens=5)
    until_sync(asking.done, seconds + 20, "the first request is answered")
    assert "[DONE]" in asking.text
    untouched(stack)
    told(stack, "m", "04-kernel-compiled", words=BUSY)
    assert {e["evidence"]["at_most_s"] for e in found(stack, "busy")} == {315 * SCALE}, "which saved it"


@pytest.mark.slow
def test_a_slow_disk_is_no_stall(fake: tuple[Stack, Script]) -> None:
    """Pages of its weights were pushed out of memory, and come back at 5 MB/s: twice as long as it may be silent."""
    stack, script = fake
    assert stack.text("m", 4) == ALPHABET[:4]
    ballast = script.file.with_name("ballast")
    ballast.write_bytes(os.urandom(64 << 20))
    ballast.chmod(0o644)
    since_s = quiet(stack, "m")
    seconds = TIMING.stall * 2
    script.write(reads_s=seconds)
    asking = Asking(stack, tokens=5)
    live = until_sync(
        lambda: live if (live := shown(stack)) and live["reason"] == "reading_from_disk" else None,
        TIMING.stall + BUSY_MACHINE,
        "the silence is excused",
    )
    assert live is not None
    assert live["holds"] is True
    until_sync(asking.done, seconds + 20, "the request is answered")
    assert "[DONE]" in asking.text
    untouched(stack)
    (busy,) = found(stack, "busy")
    assert (busy["evidence"]["at_most_s"], busy["text"]) == (
        5 * TIMING.stall,
        "m-1 is silent, for it reads from a disk",
    )
    told(stack, "m", "04-slow-disk", since_s=since_s(), words=BUSY)


@pytest.mark.parametrize("served", [pytest.param(False, marks=pytest.mark.slow), True], ids=["first", "later"])
def test_one_that_only_computes_has_stalled(fake: tuple[Stack, Script], served: bool) -> None:
    """A loop, or a wait for a GPU that hangs, takes a whole core as a compiler does; nothing else of it moves. It is
    found in T_stall whether or not it has given anybody anything."""
    stack, script = fake
    if served:
        assert stack.text("m", 4) == ALPHABET[:4]
    script.write(first_request_s=600, compiler_mb=0)
    asking = Asking(stack)
    event = stalled(stack, time.monotonic())
    assert {"delivery"} < witnesses(event)
    assert not found(stack, "busy"), "nothing excused it"
    until_sync(lambda: "stopped" in stack.codes("m"), 30, "it is gone")
    script.write()
    until_sync(asking.done, 30, "the request is answered by the next engine")
    assert "[DONE]" in asking.text


@pytest.mark.slow
def test_a_saturated_engine_is_no_stall(fake: tuple[Stack, Script]) -> None:
    """Ten streams on two slots: eight wait, for longer than an engine may be silent."""
    stack, script = fake
    script.write(tps=25)
    tokens = int(25 * TIMING.stall / 3)
    all_of_them = [Asking(stack, tokens=tokens) for _ in range(10)]
    until_sync(lambda: all(a.done() for a in all_of_them), TIMING.stall * 3 + 20, "all are answered")
    assert all("[DONE]" in a.text for a in all_of_them)
    untouched(stack)


def live_reasons(stack: Stack, seconds: float) -> set[str]:
    """Every reason of the verdict *live* that is shown in so many seconds; nothing is done to the engine meanwhile."""
    reasons: set[str] = set()
    limit = time.monotonic() + seconds

    def over() -> bool:
        verdict = shown(stack)
        reasons.add(verdict["reason"])
        assert verdict["holds"] is True
        return time.monotonic() > limit

    until_sync(over, seconds + 10, "it is looked at for so long")
    untouched(stack)
    return reasons


@pytest.mark.slow
@pytest.mark.timeout(180)  # what the kernel keeps for each of them has to fill up first
def test_slow_clients_that_hold_every_slot_are_no_stall(fake: tuple[Stack, Script]) -> None:
    """An engine that waits with its next token for clients that read a few bytes a second: no progress, no CPU, and
    those that wait for a slot get nothing."""
    stack, script = fake
    script.write(tps=100_000, lump_counters=True)
    slow = [SlowReader(stack, tokens=1_000_000) for _ in range(2)]

    def held_back() -> bool:
        live = shown(stack)
        return bool(live and live["reason"] == "clients_read_slowly")

    until_sync(held_back, 90, "the engine is held back")
    waits = Asking(stack, tokens=5)
    assert live_reasons(stack, BOUND * 2) == {"clients_read_slowly"}
    assert all(one.read for one in slow)
    assert not waits.done(), "every slot is taken"
    for one in slow:
        one.leave()
    until_sync(waits.done, 30, "it has its turn")
    assert "[DONE]" in waits.text
    untouched(stack)


@pytest.mark.slow
def test_a_slow_client_of_a_real_engine_is_no_stall(
    make_stack: MakeStack, embedded_image: str, test_models: Path
) -> None:
    """llama.cpp goes on without the client, and its only slot is free again while the client still reads."""
    stack = make_stack(scale=SCALE)
    stack.define("m", test_models / g.TARGET, method="none")
    with stack:
        stack.start("m")
        slow = SlowReader(stack, tokens=1500)
        until_sync(lambda: slow.read, 30, "its answer has begun")
        assert live_reasons(stack, BOUND * 1.5) <= {"progress", "clients_read_slowly"}
        assert stack.text("m", 8) == ALPHABET[:8], "the slot is free"
        slow.leave()


@pytest.mark.slow
def test_a_daemon_that_was_stopped_blames_nobody(fake: tuple[Stack, Script]) -> None:
    stack, _ = fake
    assert stack.daemon is not None
    stack.daemon.send_signal(signal.SIGSTOP)
    limit = time.monotonic() + TIMING.stall * 1.2
    until_sync(lambda: time.monotonic() > limit, TIMING.stall * 2, "longer than T_stall")
    stack.daemon.send_signal(signal.SIGCONT)
    until_sync(lambda: "daemon_stopped" in stack.codes(), 10, "it notices")
    assert stack.text("m", 4) == ALPHABET[:4]
    untouched(stack)


@pytest.mark.slow
def test_one_that_answers_errors_gets_no_requests_until_it_answers(fake: tuple[Stack, Script]) -> None:
    stack, script = fake
    script.write(status=500)
    until_sync(lambda: found(stack, "not_ready"), 20, "requests go elsewhere")
    assert stack.deployment("m")["engine"]["verdicts"]["ready"]["holds"] is False
    script.write()
    until_sync(lambda: found(stack, "ready_again"), 20, "it is ready again")
    assert stack.text("m", 4) == ALPHABET[:4]


def unresponsive(stack: Stack) -> Any:
    """What is said of an engine that answers, and nothing that anybody can use; in its bound from now on."""
    begun = time.monotonic()
    event = until_sync(lambda: found(stack, "engine_unresponsive"), 30, "it is found")[0]
    assert time.monotonic() - begun <= BOUND + TIMING.health_canary + BUSY_MACHINE, "from the first of its errors on"
    return event


def replaced(stack: Stack, script: Script) -> None:
    """Its engine goes, and another one, which is well, serves."""
    until_sync(lambda: stack.deployment("m")["state"] != "ready", 10, "it is taken down")
    script.write()
    until_sync(lambda: stack.deployment("m")["state"] == "ready", 60, "another engine serves")
    assert stack.text("m", 4) == ALPHABET[:4]


@pytest.mark.slow
def test_one_that_answers_nothing_but_errors_is_replaced(fake: tuple[Stack, Script]) -> None:
    stack, script = fake
    script.write(status=500)
    event = unresponsive(stack)
    assert event["evidence"]["errors"] >= 3
    replaced(stack, script)


@pytest.mark.slow
def test_one_that_has_room_and_turns_everybody_away_is_replaced(fake: tuple[Stack, Script]) -> None:
    stack, script = fake
    script.write(status=503)
    event = unresponsive(stack)
    assert "turns every completion away" in event["text"]
    assert event["evidence"]["turned_away"] >= 3
    replaced(stack, script)


@pytest.mark.slow
def test_a_wedge_under_an_answer_in_one_piece_is_found_while_a_slot_is_free(fake: tuple[Stack, Script]) -> None:
    """Of an answer in one piece nothing is seen for hours, where nobody said how long it may be: a token of ours, which
    a free slot would take, says it sooner."""
    stack, script = fake
    script.write(tps=0.2, slots_hang=True)
    Asking(stack, tokens=2000, stream=False)
    until_sync(lambda: stack.deployment("m")["in_flight"] == 1, 10, "it is at the engine")
    script.write(wedge=True)
    assert {"silent", "canary"} <= witnesses(stalled(stack, time.monotonic()))


@pytest.mark.slow
def test_a_livelock_with_every_slot_taken_is_found(fake: tuple[Stack, Script]) -> None:
    stack, script = fake
    script.write(livelock=True)
    for _ in range(3):
        Asking(stack)
    assert len(witnesses(stalled(stack, time.monotonic()))) >= 2
