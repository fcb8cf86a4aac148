"""Engines that are healthy and talk nonsense: none of them serves, and the ladder helps.

The engine is a fake one (`tests.fakes.engine`): no real one here says the wrong thing only when it drafts, or only from
some moment on. What real ones do is in `test_real_engines` and `test_mispaired`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.plan import Plan
from orchestrator.timing import Timing
from tests.canary.asked import Desk, a_desk, a_plan
from tests.engine.running import running
from tests.fakes.engine import Script
from tests.models import generate as g
from tests.stack_fixture import MakeStack
from tests.telling.golden import told

pytestmark = [pytest.mark.real, pytest.mark.timeout(90)]


def test_drafts_that_change_the_text_never_serve(
    make_stack: MakeStack, fake_engine_image: str, test_models: Path
) -> None:
    """Row 6: wrong from the third drafted token on. Two starts, two canaries that fail, the combination is refuted with
    its source, and what serves is the same model without drafting."""
    stack = make_stack()
    script = {"wrong_drafts": 3}
    stack.define_fake(
        "liar", fake_engine_image, test_models / g.TARGET, script=script, method="auto", drafter=test_models / g.DFLASH
    )
    with stack:
        stack.want("liar", "running")
        view = stack.wait_state("liar", "ready", limit=60, may_fail=True)
        assert view["engine"]["method"] == "none"
        assert stack.text("liar", 10) == "abcdefghij"
        events = stack.events("liar")
        plan = stack.send("POST", "/api/v1/plans", {"model": "liar"}).json()
        story = told(stack, "liar", "06-drafts-change-the-text")
    failed = [e["evidence"] for e in events if e["code"] == "failed"]
    assert [(f["code"], f["reason"], f["begins_right"]) for f in failed] == [("canary_failed", "text_differs", 0)] * 2
    assert [f["failed_in_a_row"] for f in failed] == [1, 2], "two failures, with a restart between"
    assert sum(e["code"] == "combination_refuted" for e in events) == 1
    rejected = [a for a in plan["alternatives"] if (a["rejected"] or {}).get("code") == "quarantined"]
    assert [(a["method"], a["evidence"]) for a in rejected] == [("dflash", "refuted")]
    assert "canaries of this host" in rejected[0]["source"]
    assert "begin as its weights have it" in rejected[0]["rejected"]["text"]
    print(story)


@pytest.fixture
def fake(tmp_path: Path, xllamacpp_path: Path, test_models: Path) -> Iterator[Callable[..., tuple[Script, Plan, Path]]]:
    """Start the fake engine as a process: its script, a plan of it, and where it listens."""
    with contextlib.ExitStack() as stack:

        def begin(**says: Any) -> tuple[Script, Plan, Path]:
            folder = tmp_path / "fake"
            folder.mkdir()
            model = folder / g.TARGET
            model.write_bytes((test_models / g.TARGET).read_bytes())
            script = Script(folder)
            script.write(**says)
            program = [sys.executable, "-m", "tests.fakes.engine"]
            process = running(xllamacpp_path, folder, ["-m", model, "-np", "2"], command=program)
            return script, a_plan(model), stack.enter_context(process).socket

        yield begin


async def test_garbage_from_the_first_start_on_is_no_measure(
    desk: Desk, fake: Callable[..., tuple[Script, Plan, Path]]
) -> None:
    """Nothing is known of these weights yet, and what this engine says cannot be what any weights say. Mended, it is
    measured as if nothing had been."""
    script, plan, socket = fake(garbage=True)
    error = await desk.fails(plan, socket)
    assert (error.evidence["reason"], error.evidence["failed_in_a_row"]) == ("implausible", 1)
    assert "knows nothing" in error.detail
    script.write()
    await desk.look(plan, socket)
    assert desk.last().code == "canary_passed"
    script.write(garbage=True)
    error = await desk.fails(plan, socket)
    assert error.evidence["reason"] == "likelihood_off"
    assert "refuted" not in error.evidence, "it passed in between"


async def test_answers_that_get_mixed_up_are_found(desk: Desk, fake: Callable[..., tuple[Script, Plan, Path]]) -> None:
    """Each request alone is answered rightly; only the pair shows it."""
    _, plan, socket = fake(crosstalk=True, tps=200)
    error = await desk.fails(plan, socket)
    assert error.evidence["reason"] == "together_differs"
    assert error.evidence["begins_right"] == 3
    pair = error.evidence["pair_leading"]
    assert isinstance(pair, dict)
    assert min(pair.values()) < 8


async def test_completions_that_fail_are_found(desk: Desk, fake: Callable[..., tuple[Script, Plan, Path]]) -> None:
    """Healthy, and every completion is a 500."""
    _, plan, socket = fake(status=500)
    error = await desk.fails(plan, socket)
    assert (error.evidence["reason"], error.evidence["status"]) == ("refused", 500)


async def test_an_engine_that_takes_no_such_questions_is_left_alone(
    desk: Desk, fake: Callable[..., tuple[Script, Plan, Path]]
) -> None:
    """No fault of anybody, and said."""
    _, plan, socket = fake(status=404)
    await desk.look(plan, socket)
    assert desk.last().code == "canary_left_out"


async def test_one_that_reads_a_long_prompt_too_slowly_is_not_asked_it(
    tmp_path: Path, fake: Callable[..., tuple[Script, Plan, Path]]
) -> None:
    """It answers all that is short rightly; 1,280 tokens take it longer than any call may. That is no fault of it."""
    _, plan, socket = fake(prefill_tps=1000)
    plan = replace(plan, argv=(*plan.argv, "-ub", "1024", "-b", "1024"))
    async with a_desk(tmp_path, replace(Timing(), proof_call=0.7)) as desk:
        await desk.look(plan, socket)
        assert desk.last().code == "canary_passed"
        assert "long" not in desk.last().evidence
        assert desk.last().evidence["whole"] is False
        assert desk.last().evidence["begins_right"] == 3
