"""Ending while long streams run: none of them breaks inside its time, and whoever asks whether we live hears yes.

Real engines in real Podman; the heavy model makes a stream last seconds.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from containers import proc
from orchestrator.clock import SystemClock
from orchestrator.gateway_link import GatewayLink
from orchestrator.timing import Timing
from tests.models import generate as g
from tests.models.tokenizer import recital
from tests.podman_fixture import run_apart
from tests.stack.stack import Stack
from tests.stack.test_survival import Stream
from tests.stack_fixture import MakeStack
from tests.telling.golden import told
from tests.waiting import until_sync

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]
LONG = 1200


@pytest.fixture
def stack(make_stack: MakeStack, heavy_models: Path) -> Iterator[Stack]:
    made = make_stack()
    made.define("m", heavy_models / g.TARGET_HEAVY, method="none", parallel=2, context=4096)
    with made:
        yield made


def streams(stack: Stack, count: int = 2) -> list[Stream]:
    """Long streams that have begun."""
    found = [Stream(stack, "m", LONG) for _ in range(count)]
    for stream in found:
        stream.start()
    until_sync(lambda: all(len(s.text) > 3 for s in found), 30, "the streams run")
    return found


def whole(found: list[Stream]) -> bool:
    """Wait for their ends; whether none was broken."""
    for stream in found:
        stream.join(120)
    return [(s.error, s.done, s.text == recital(LONG)) for s in found] == [(None, True, True)] * len(found)


def ops(stack: Stack, path: str) -> tuple[int, Any]:
    answer = httpx.get(f"http://127.0.0.1:{stack.ops_port}{path}", timeout=5)
    return answer.status_code, answer.json()


def runs(pid: int) -> bool:
    found = proc.process(pid)
    return found is not None and found.alive


@pytest.mark.slow
def test_a_stop_lets_long_streams_end(stack: Stack) -> None:
    engine = stack.start("m")[0]["engine"]
    found = streams(stack)
    stack.want("m", "stopped")
    until_sync(lambda: stack.deployment("m")["state"] == "draining", 10, "draining")
    stack.want("m", "stopped")  # asked once more: the same stop goes on
    assert ops(stack, "/ready/m")[0] == 503, "nobody is to send anything here any more"
    assert ops(stack, "/healthz")[0] == 200, "and it lives"
    refused = stack.chat("m", 4)
    assert refused.status_code == 503
    assert not any(s.done for s in found)
    assert runs(engine["pid"])
    assert whole(found)
    stack.wait_state("m", "stopped")
    (drained,) = (e for e in stack.events("m") if e["code"] == "drained")
    assert drained["evidence"]["in_flight"] == 0
    assert not {"stop_escalated", "drain_cut_short", "failed"} & set(stack.codes("m"))
    assert stack.containers() == []
    told(stack, "m", "25-drained-with-long-streams")


@pytest.mark.slow
def test_a_gateway_that_is_told_to_end_twice_lives_until_its_streams_have_ended(stack: Stack) -> None:
    stack.start("m")
    found = streams(stack)
    assert stack.gateway is not None
    for _ in range(2):
        stack.gateway.send_signal(signal.SIGTERM)
        until_sync(lambda: ops(stack, "/healthz") == (200, {**ops(stack, "/healthz")[1], "status": "stopping"}), 10)
        assert ops(stack, "/ready/m")[0] == 503
    assert not any(s.done for s in found)
    assert whole(found)
    assert stack.gateway.wait(30) == 0


@pytest.mark.slow
def test_a_drain_that_takes_too_long_breaks_nothing_by_itself_and_the_next_daemon_stops_on(stack: Stack) -> None:
    """The deadline of five minutes is not waited for: the gateway is asked with another, as the daemon asks."""
    engine = stack.start("m")[0]["engine"]
    found = streams(stack, 1)
    link = GatewayLink(stack.paths.gateway_socket, SystemClock(), Timing())
    drained = run_apart(link.drain(engine["id"], 0.2, 0))
    assert (drained.done, drained.in_flight, drained.reason) == (False, 1, "drain_timed_out")
    assert not found[0].done

    # the daemon is told to end, twice, in the middle of a drain: the stream goes on, and the next daemon stops on
    stack.want("m", "stopped")
    assert stack.daemon is not None
    for _ in range(2):
        stack.daemon.send_signal(signal.SIGTERM)
    assert stack.daemon.wait(30) == 0
    assert whole(found)
    assert runs(engine["pid"])
    stack.start_daemon()
    stack.wait_state("m", "stopped")
    until_sync(lambda: stack.containers() == [], 30, "its container is gone")
