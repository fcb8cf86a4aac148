"""Whether an engine drafts as its plan says: the alarm and its opposite, from values; what a silence is called."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.canary.drafting import Drafts, Window, cause, clamped, judge
from orchestrator.plan import Method, Plan
from tests.canary.asked import a_plan

MODEL = Path("/m/x.gguf")
FULL = ("--spec-type", "draft-dflash", "-md", "/models/d.gguf", "--spec-draft-n-max", "7")
PLAN = a_plan(MODEL, *FULL, method=Method.DFLASH, draft_tokens=7)


def test_nothing_accepted_in_two_hundred_drafts_raises_the_alarm() -> None:
    verdict = judge(PLAN, Window(204, 200, 1400, 4), True)
    assert (verdict.action, verdict.evidence["length"]) == (Drafts.USELESS, 1.02)
    assert judge(PLAN, Window(205, 200, 1400, 5), True).action is Drafts.FINE, "1.025 tokens a step"
    assert judge(PLAN, Window(203, 199, 1393, 0), True).action is Drafts.UNKNOWN, "too few to tell"


@pytest.mark.parametrize("drafts", [200, 1000, 100_000])
def test_a_rate_of_one_never_does(drafts: int) -> None:
    """A right drafter: dflash-full 223 of 223, n-gram 168 of 168 were measured."""
    assert judge(PLAN, Window(8 * drafts, drafts, 7 * drafts, 7 * drafts), True).action is Drafts.FINE
    one = replace(PLAN, draft_tokens=1, method=Method.MTP)
    assert judge(one, Window(2 * drafts, drafts, drafts, drafts), True).action is Drafts.FINE


def test_silence() -> None:
    assert judge(PLAN, Window(600, None, None, None), True).action is Drafts.QUIET
    assert judge(PLAN, Window(100, 0, 0, 0), True).action is Drafts.UNKNOWN
    assert judge(PLAN, Window(0, 0, 0, 0), False).action is Drafts.OFF, "it says so itself"
    ngram = replace(PLAN, method=Method.NGRAM)
    assert judge(ngram, Window(10_000, 0, 0, 0), True).action is Drafts.UNKNOWN, "it found nothing to repeat"
    plain = a_plan(MODEL)
    assert judge(plain, Window(10_000, 0, 0, 0), False).action is Drafts.FINE, "it is not meant to draft"


def test_drafts_longer_than_planned() -> None:
    assert judge(PLAN, Window(900, 300, 4500, 600), True).action is Drafts.TOO_WIDE
    assert judge(PLAN, Window(900, 300, 2100, 600), True).action is Drafts.FINE
    assert judge(PLAN, Window(900, 300, 900, 600), True).action is Drafts.FINE, "shorter ones are p-min's business"


def test_what_is_not_counted_is_not_judged() -> None:
    """SGLang counts its drafts alone."""
    assert judge(PLAN, Window(5000, 500, None, None), None).action is Drafts.FINE


@pytest.mark.parametrize(
    ("plan", "lines", "name"),
    [
        (a_plan(MODEL, *FULL[:2], method=Method.DFLASH), [], "drafter_not_given"),
        (a_plan(MODEL, *FULL[2:4], method=Method.DRAFT), [], "method_not_said"),
        (a_plan(MODEL, method=Method.MTP), [], "method_not_said"),
        (PLAN, ["E spec common_specu: the target and draft vocabs are not compatible"], "vocabulary_differs"),
        (PLAN, ["E srv decode: failed to process speculative batch"], "drafter_of_another_kind"),
        (PLAN, ["speculative decoding not supported by this context"], "drafting_not_set_up"),
        (PLAN, ["all is well"], "unknown"),
    ],
)
def test_each_silence_has_a_name(plan: Plan, lines: list[str], name: str) -> None:
    found, why = cause(plan, lines)
    assert found == name
    assert why


def test_a_draft_that_was_cut_short() -> None:
    line = "requested draft size (n_max=15, n_min=0) exceeds the trained block size 8 -- clamping to 7"
    assert clamped(replace(PLAN, draft_tokens=15), [line]) == 7
    assert clamped(PLAN, [line]) is None
    assert clamped(PLAN, []) is None
