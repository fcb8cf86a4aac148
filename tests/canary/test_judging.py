"""The verdict, from values: what is a fault, what is none, and by how much."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.canary.judging import DRIFT, TIE, Answer, Observation, Outcome, judge, pair_of, said
from orchestrator.canary.passages import LEADING, long_size, long_text
from orchestrator.canary.reference import Passage, Reference, implausible

NAMES = ("0", "1", "2")


def passage(first: int, length: int = 12, logprob: float = -0.1) -> Passage:
    return Passage((1, 2, 3), tuple(range(first, first + length)), (logprob,) * length)


KNOWN = Reference({"0": passage(100, 32), "1": passage(200), "2": passage(300), "long-640": passage(400, 8)}, {})


def right(name: str) -> Answer:
    return Answer(KNOWN.passages[name].tokens)


def wrong(name: str, same: int = 0, below: float | None = 9.0) -> Answer:
    """Right for so many tokens, then others, so far below the likeliest."""
    known = KNOWN.passages[name].tokens
    doubts = None if below is None else (0.0,) * same + (below,) * (LEADING - same)
    return Answer((*known[:same], *(7 for _ in known[same:])), doubts)


FINE = Observation((-0.1,) * 32, {n: right(n) for n in NAMES}, ("long-640", right("long-640")), None)


def test_all_right() -> None:
    verdict = judge(KNOWN, FINE, exact=True)
    assert (verdict.action, verdict.reason) == (Outcome.PASSED, "as_the_weights_say")
    assert verdict.evidence["leading"] == {"0": 32, "1": 12, "2": 12}


@pytest.mark.parametrize(("mean", "ok"), [(-0.59, True), (-0.61, False), (0.0, True), (-5.0, False)])
def test_the_likelihood_of_the_known_text_may_move_by_half_a_nat(mean: float, ok: bool) -> None:
    verdict = judge(KNOWN, replace(FINE, scored=(mean,) * 32))
    assert (verdict.action is Outcome.PASSED) is ok
    if not ok:
        assert verdict.reason == "likelihood_off"
        assert verdict.evidence["nats_limit"] == DRIFT
        assert "nats a token" in said(verdict)


@pytest.mark.parametrize(
    ("answers", "ok"),
    [
        ((right("0"), right("1"), wrong("2")), True),
        ((right("0"), wrong("1"), wrong("2")), False),
        ((wrong("0", 8), wrong("1", 8), wrong("2")), True),
        ((wrong("0", 7), wrong("1", 7), right("2")), False),
        ((wrong("0", 2, TIE), wrong("1", 0, TIE), wrong("2")), True),
        ((wrong("0", 2, TIE + 0.01), wrong("1", 0, TIE + 0.01), right("2")), False),
        ((wrong("0", 2, None), wrong("1", 2, None), right("2")), False),
    ],
)
def test_two_of_three_answers_begin_right_or_part_at_a_tie(answers: tuple[Answer, ...], ok: bool) -> None:
    verdict = judge(KNOWN, replace(FINE, answers=dict(zip(NAMES, answers, strict=True))))
    assert (verdict.action is Outcome.PASSED) is ok
    if not ok:
        assert verdict.reason == "text_differs"
        assert "of 3 answers" in said(verdict)


def test_the_long_prompt_counts_alone() -> None:
    verdict = judge(KNOWN, replace(FINE, long=("long-640", wrong("long-640"))))
    assert (verdict.reason, verdict.evidence["long_leading"]) == ("long_prompt_differs", 0)


def test_a_pair_that_is_mixed_up_is_told_from_one_that_differs() -> None:
    mixed = {"1": Answer(KNOWN.passages["2"].tokens, (9.0,) * 8), "2": right("2")}
    assert judge(KNOWN, replace(FINE, pair=mixed)).reason == "answers_mixed_up"
    assert judge(KNOWN, replace(FINE, pair={"1": wrong("1"), "2": right("2")})).reason == "together_differs"
    assert judge(KNOWN, replace(FINE, pair={"1": right("1"), "2": right("2")})).action is Outcome.PASSED


def test_only_an_exact_plan_is_held_to_every_token() -> None:
    late = replace(FINE, answers={**FINE.answers, "0": wrong("0", 31, None)})
    assert judge(KNOWN, late).action is Outcome.PASSED
    assert judge(KNOWN, late, exact=True).reason == "digest_differs"


def test_two_passages_that_begin_alike_make_no_pair() -> None:
    same = Reference({n: passage(100) for n in NAMES}, {})
    assert pair_of(same) is None
    assert pair_of(KNOWN) == ("1", "2")


def test_garbage_from_the_first_day_on_is_no_measure() -> None:
    assert implausible([passage(1), passage(2)]) is None
    assert "knows nothing" in str(implausible([passage(1, logprob=-11.9), passage(2)]))
    assert "same token" in str(implausible([Passage((1,), (5,) * 8, (0.0,) * 8)] * 3))


def test_the_long_prompt_is_longer_than_a_chunk_and_fits_the_context() -> None:
    assert long_size((512, 2048), 8192) == 2560
    assert long_size((512, 2048), 2048) == 640
    assert long_size((2048,), 2048) is None
    assert len(long_text(640).split()) >= 640


@given(st.lists(st.integers(0, 40), min_size=12, max_size=12), st.floats(0, 20))
def test_what_is_too_far_below_the_likeliest_never_passes_and_a_tie_always_does(
    tokens: list[int], below: float
) -> None:
    """Whatever an engine says instead: only how likely it finds that itself decides."""
    other = Answer(tuple(tokens), (below,) * LEADING)
    verdict = judge(KNOWN, replace(FINE, answers={"0": other, "1": other, "2": right("2")}))
    assert (verdict.action is Outcome.PASSED) is (below <= TIE)


@given(st.floats(-30, 0), st.floats(-3.9, 0))
def test_a_likelihood_is_judged_by_its_distance_alone(now: float, before: float) -> None:
    known = Reference({**KNOWN.passages, "0": passage(100, 32, before)}, {})
    off = abs(now - before)
    if abs(off - DRIFT) > 1e-6:
        passed = judge(known, replace(FINE, scored=(now,) * 32)).action is Outcome.PASSED
        assert passed is (off < DRIFT)


def test_a_reference_is_read_back_and_nothing_else_is() -> None:
    again = Reference.from_text(KNOWN.to_text(), NAMES)
    assert again == KNOWN
    for text in ("", "{}", "[]", '{"passages": {"0": 1}, "made": {}}', KNOWN.to_text().replace("-0.1", "NaN")):
        assert Reference.from_text(text, NAMES) is None
