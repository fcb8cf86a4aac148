"""Canaries of the real engine: what it says by itself, what drafting makes of it, and what a canary sees of that."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.canary import asking
from orchestrator.canary.asking import Asker
from orchestrator.canary.passages import LENGTHS, TEXTS
from orchestrator.engine_client import EngineClient
from orchestrator.plan import Method
from orchestrator.runtimes import adapter
from tests.canary.asked import Desk, a_plan
from tests.canary.conftest import Start
from tests.models import generate as g

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]

DFLASH = ("--spec-type", "draft-dflash", "--spec-draft-n-max", "7")


async def test_a_reference_is_made_without_drafting_on_an_engine_that_drafts(
    desk: Desk, start: Start, test_models: Path
) -> None:
    """The proof that it needs no second start: asked for one token at a time, the engine's own counters stand still."""
    engine = start("-m", test_models / g.TARGET, *DFLASH, "-md", test_models / g.DFLASH)
    plan = a_plan(test_models / g.TARGET, method=Method.DFLASH)
    assert (await desk.counters(plan, engine.socket)).drafted in (None, 0)
    async with EngineClient(socket=str(engine.socket), port=None, key="k", timeout=10) as client:
        asker = Asker(client, adapter(plan.runtime).scoring, "m", now=lambda: 0.0, end=1.0, call=10)
        passages = await asking.three(asker, LENGTHS)
        assert [len(p.tokens) for p in passages.values()] == list(LENGTHS)
        counted = await desk.counters(plan, engine.socket)
        assert counted.generated is not None
        assert counted.generated >= sum(LENGTHS), "it did work"
        assert counted.drafted in (None, 0), "and drafted nothing"
        answer = await asker.answer(passages["0"])
    assert answer.tokens == passages["0"].tokens, "with drafting it says the same"
    assert (await desk.counters(plan, engine.socket)).drafted, "and drafted for that"


@pytest.mark.parametrize("target", [g.TARGET_TWO, g.RANDOM_1, g.TARGET_TWO_MTP])
async def test_an_engine_is_measured_by_its_own_weights(
    desk: Desk, start: Start, test_models: Path, target: str
) -> None:
    """Twice: the first makes the measure with everything that there is to ask, the second only compares."""
    drafting = ("--spec-type", "draft-mtp", "--spec-draft-n-max", "3") if target == g.TARGET_TWO_MTP else ()
    engine = start("-m", test_models / target, *drafting)
    plan = a_plan(test_models / target, method=Method.MTP if drafting else Method.NONE)
    await desk.look(plan, engine.socket)
    first = desk.last()
    assert first.code == "canary_passed"
    assert (first.evidence["whole"], first.evidence["long"]) == (True, "long-640"), "longer than its batch of 512"
    assert first.evidence["leading"] == {"0": 32, "1": 12, "2": 12}
    assert first.evidence["pair_leading"] == {"1": 12, "2": 12}
    assert first.evidence["long_leading"] == 8
    await desk.look(plan, engine.socket)
    second = desk.last()
    assert (second.code, second.evidence["whole"]) == ("canary_passed", False)
    nats, known = second.evidence["nats"], second.evidence["nats_calibrated"]
    assert isinstance(nats, float)
    assert isinstance(known, float)
    assert abs(nats - known) < 0.05
    print(f"{target}: {first.evidence['seconds']} s with the reference, {second.evidence['seconds']} s without")


async def test_drafting_that_changes_the_text_is_found(desk: Desk, start: Start, test_models: Path) -> None:
    """llama.cpp's own synthetic acceptance takes drafted tokens whatever the target thinks of them: it is healthy, it
    drafts, half of what it drafts is taken, and what it says is wrong. From its very first start on."""
    words = ("-m", test_models / g.TARGET, *DFLASH, "-md", test_models / g.DFLASH_WRONG)
    engine = start(*words, "--spec-synth-rates", "0.9,0.5,0.5,0.1,0.1,0.1,0.1")
    plan = a_plan(test_models / g.TARGET, method=Method.DFLASH)
    error = await desk.fails(plan, engine.socket)
    assert error.evidence["reason"] == "text_differs"
    assert error.evidence["begins_right"] in (0, 1)
    assert error.evidence["begins_right_needed"] == 2
    assert error.evidence["failed_in_a_row"] == 1
    again = await desk.fails(plan, engine.socket)
    assert (again.evidence["failed_in_a_row"], again.evidence["refuted"]) == (2, True)
    assert [e.code for e in desk.events()] == ["combination_refuted"]
    assert "dflash by drafter" in desk.last().text
    refuted = list(desk.observing.known.refuted.values())
    assert len(refuted) == 1
    assert "2 engines in a row" in refuted[0].source


async def test_other_weights_under_the_same_name_are_found(desk: Desk, start: Start, test_models: Path) -> None:
    """What a damaged quantisation or a kernel that computes wrongly looks like: fluent, certain, not this model."""
    plan = a_plan(test_models / g.RANDOM_1)
    await desk.look(plan, start("-m", test_models / g.RANDOM_1).socket)
    error = await desk.fails(plan, start("-m", test_models / g.RANDOM_2).socket)
    assert error.evidence["reason"] == "likelihood_off"
    assert error.evidence["nats_limit"] == 0.5
    print(f"{error.evidence['nats']} nats a token instead of {error.evidence['nats_calibrated']}")


async def test_a_right_drafter_whose_every_token_is_taken_passes(desk: Desk, start: Start, test_models: Path) -> None:
    engine = start("-m", test_models / g.TARGET_TWO, *DFLASH, "-md", test_models / g.DFLASH)
    plan = a_plan(test_models / g.TARGET_TWO, method=Method.DFLASH)
    for _ in range(3):
        await desk.look(plan, engine.socket)
    counted = await desk.counters(plan, engine.socket)
    assert counted.drafted == counted.accepted, "acceptance rate 1.0"
    assert [e.code for e in desk.events()] == ["canary_passed"] * 3


async def test_a_drafter_that_is_always_wrong_passes(desk: Desk, start: Start, test_models: Path) -> None:
    """Slow, and no lie."""
    engine = start("-m", test_models / g.TARGET_TWO, *DFLASH, "-md", test_models / g.DFLASH_WRONG)
    await desk.look(a_plan(test_models / g.TARGET_TWO, method=Method.DFLASH), engine.socket)
    assert desk.last().code == "canary_passed"


def test_the_texts_are_distinct_and_short() -> None:
    assert len(set(TEXTS)) == len(TEXTS) == len(LENGTHS)
    assert sum(LENGTHS) <= 64, "each is a request of its own, at the first start of some weights"


async def test_only_a_plan_that_is_marked_deterministic_is_held_to_every_token(
    desk: Desk, start: Start, test_models: Path
) -> None:
    """The model of near-ties says something else when it drafts: no fault, unless somebody promised it."""
    words = ("--spec-type", "draft-simple", "--spec-draft-n-max", "5", "-md", test_models / g.RANDOM_2)
    engine = start("-m", test_models / g.TIES, *words)
    plan = a_plan(test_models / g.TIES, method=Method.DRAFT)
    await desk.look(plan, engine.socket)
    assert desk.last().code == "canary_passed"
    error = await desk.fails(a_plan(test_models / g.TIES, method=Method.DRAFT, deterministic=True), engine.socket)
    assert error.evidence["reason"] == "digest_differs"
    steady = a_plan(test_models / g.RANDOM_1, deterministic=True)
    await desk.look(steady, start("-m", test_models / g.RANDOM_1).socket)
    assert desk.last().code == "canary_passed"
