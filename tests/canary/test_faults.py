"""Engines that are healthy and talk nonsense, through a whole Outrider: none of them serves, and the ladder helps.

The engine is a fake one (`tests.fakes.engine`): no real one here says the wrong thing only when it drafts, or only from
some moment on. What real ones do is in `test_real_engines` and `test_mispaired`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

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


def test_garbage_from_the_first_start_on_is_no_measure(
    make_stack: MakeStack, fake_engine_image: str, test_models: Path
) -> None:
    """Nothing is known of these weights yet, and what this engine says cannot be what any weights say."""
    stack = make_stack(gateway=False)
    script = stack.define_fake("liar", fake_engine_image, test_models / g.TARGET, script={"garbage": True})
    with stack:
        stack.want("liar", "running")
        stack.wait(lambda: "combination_refuted" in stack.codes("liar"), 60, "two failures")
        failed = [e["evidence"] for e in stack.events("liar") if e["code"] == "failed"]
        assert {(f["code"], f["reason"]) for f in failed[:2]} == {("canary_failed", "implausible")}
        assert "ready" not in stack.codes("liar")
        # mended, and forgotten: it is tried again, and serves
        script.write()
        assert stack.send("DELETE", "/api/v1/measurements?model=liar").status_code < 300
        stack.start("liar")
