"""An engine that is slower than it usually is: found and told of, left running, and withdrawn by itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from api.gateway.firsts import KEPT, LONG, Firsts
from orchestrator.health.pace import Pace, Speed, decide
from orchestrator.measured import Measured, Ran
from orchestrator.measured import Speed as Decoded
from orchestrator.measuring.learned import First
from orchestrator.measuring.ledger import Ledger
from orchestrator.measuring.pacing import ROW, Pacing
from orchestrator.plan import Method
from tests.fakes.engine import Script
from tests.models import generate as g
from tests.stack.stack import Stack
from tests.stack_fixture import MakeStack
from tests.waiting import until_sync

RAN = Ran("m", "v", "llama.cpp", "1", "cpu", Method.NONE, None)


@pytest.mark.parametrize(
    ("pace", "was", "action", "reason"),
    [
        (Pace(20, 3.1, 1.0), False, Speed.SLOW, "first_token_late"),
        (Pace(20, 2.9, 1.0), False, Speed.USUAL, "as_usual"),
        (Pace(20, 2.1, 1.0), True, Speed.SLOW, "first_token_late"),  # once slow, it has to be well to be well
        (Pace(20, 1.9, 1.0), True, Speed.USUAL, "as_usual"),
        (Pace(20, 0.4, 0.01), False, Speed.USUAL, "as_usual"),  # forty times as long, and nobody notices
        (Pace(19, 9.0, 1.0), False, Speed.UNKNOWN, "nothing_to_compare"),  # too few to say
        (Pace(64, 9.0, None), False, Speed.UNKNOWN, "nothing_to_compare"),  # a new host
        (Pace(0, None, 1.0), False, Speed.UNKNOWN, "nothing_to_compare"),
        (Pace(tokens_s=19.0, usual_tokens_s=50.0), False, Speed.SLOW, "decodes_slowly"),
        (Pace(tokens_s=21.0, usual_tokens_s=50.0), False, Speed.USUAL, "as_usual"),
        (Pace(tokens_s=27.0, usual_tokens_s=50.0), True, Speed.SLOW, "decodes_slowly"),
        (Pace(tokens_s=29.0, usual_tokens_s=50.0), True, Speed.USUAL, "as_usual"),
        (Pace(tokens_s=132.0, usual_tokens_s=227.0), False, Speed.USUAL, "as_usual"),  # prose instead of code
    ],
)
def test_slower_than_usual(pace: Pace, was: bool, action: Speed, reason: str) -> None:
    decision = decide(pace, was=was)
    assert (decision.action, decision.reason) == (action, reason)
    if action is Speed.SLOW:
        assert {"first_s", "first_s_limit"} <= set(decision.evidence) or "tokens_s_limit" in decision.evidence


def test_what_the_gateway_says_of_first_tokens() -> None:
    firsts = Firsts()
    assert firsts.document() is None
    for at in range(100):
        firsts.note(at / 1000, 100)
    assert firsts.document() == {"streams": 100, "kept": KEPT, "p95_s": 0.096}, "of the latest"
    firsts = Firsts()
    firsts.note(8.0, 4 * LONG)
    assert firsts.document() == {"streams": 1, "kept": 1, "p95_s": 2.0}, "a long prompt takes longer"


def test_what_is_slow_does_not_become_what_is_usual() -> None:
    known = Measured(first_s={RAN: 0.1}, speed={RAN: Decoded(50.0, 9.0, "d")})
    pacing = Pacing()
    assert pacing.streams(None) is pacing.streams({"streams": "x"}) is None
    assert pacing.streams({"streams": ROW - 1, "kept": ROW - 1, "p95_s": 0.1}) is None
    assert pacing.streams({"streams": ROW, "kept": 64, "p95_s": 0.1}) == (0.1, 64)
    assert pacing.streams({"streams": ROW + 1, "kept": 64, "p95_s": 2.0}) is None
    pacing.judge(RAN, known)
    slow = [pacing.slow]
    assert pacing.streams({"streams": 5, "kept": 5, "p95_s": 0.1}) is None, "another gateway begins anew"
    pacing.judge(RAN, known)
    slow.append(pacing.slow)
    for _ in range(3):
        pacing.decoded(100, 10.0)
    pacing.judge(RAN, known)
    slow.append(pacing.slow)
    assert slow == [True, False, True]
    assert pacing.now.tokens_s == 10.0


async def test_what_is_usual_outlives_the_daemon(tmp_path: Path) -> None:
    for seconds in (0.1, 0.3, 0.2):
        ledger = await Ledger.open(tmp_path / "m.db")
        await ledger.first(First(RAN, None, "2026-01-01", seconds, 64), 1.0)
        await ledger.close()
    ledger = await Ledger.open(tmp_path / "m.db")
    assert [f.seconds for f in await ledger.firsts()] == [0.1, 0.3, 0.2]
    await ledger.put("INSERT INTO firsts VALUES ('[]', NULL, 1.0, 'd', 'soon', 'many')")
    assert len(await ledger.firsts()) == 3, "what cannot be is left out"
    assert await ledger.forget("m") == 1
    assert await ledger.firsts() == []
    await ledger.close()


@pytest.fixture
def fake(make_stack: MakeStack, fake_engine_image: str, test_models: Path) -> Iterator[tuple[Stack, Script]]:
    stack = make_stack(scale=0.05)
    script = stack.define_fake("m", fake_engine_image, test_models / g.TARGET, parallel=2)
    with stack:
        stack.start("m")
        yield stack, script


@pytest.mark.slow
@pytest.mark.timeout(180)  # a hundred and fifty requests, one after the other
def test_a_slow_engine_is_degraded_and_goes_on(fake: tuple[Stack, Script]) -> None:
    """A usual p95 is known after 64 streams; ten of the latest 64 that take 0.8 s make it slow, and as many good ones
    as there are places make it well again."""
    stack, script = fake
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "stream": True}

    def stream(client: httpx.Client) -> None:
        with client.stream("POST", f"{stack.base_url}/chat/completions", json=body) as answer:
            assert "[DONE]" in "".join(answer.iter_text())

    def degraded() -> bool:
        verdict = stack.deployment("m")["engine"]["verdicts"]["degraded"]
        assert verdict["reason"] in ("slower_than_usual", "nothing_known")
        return bool(verdict["holds"])

    with httpx.Client(timeout=30) as client:
        for _ in range(KEPT + 1):
            stream(client)
        assert not degraded()
        script.write(tps=1.2)
        for _ in range(10):
            stream(client)
        until_sync(degraded, 20, "it is degraded")
        (issue,) = [i for i in stack.get("/api/v1/issues") if i["code"] == "slower_than_usual"]
        with stack.api() as api:
            assert 'code="slower_than_usual"' in api.get("/metrics").text
        assert issue["evidence"]["reason"] == "first_token_late"
        assert issue["evidence"]["first_s"] >= 0.8 > issue["evidence"]["first_s_limit"]
        script.write()
        for _ in range(KEPT):
            stream(client)
    until_sync(lambda: not degraded(), 20, "it is well again")
    assert {"slower_than_usual", "slower_than_usual_over"} <= set(stack.codes("m"))
    assert not {"engine_stalled", "failed", "stopped"} & set(stack.codes("m"))
    assert stack.deployment("m")["engine"]["generation"] == 1
