"""Every method of speculation, through the daemon, in Podman: exact text, exact counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.expected import BY_NAME, PROMPT, TOKENS
from tests.models.tokenizer import recital
from tests.stack_fixture import MakeStack

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

METHODS = {
    "dflash": "dflash",
    "dspark": "dspark",
    "mtp": "mtp-3",
    "eagle3": "eagle3",
    "draft": "draft",
    "ngram": "ngram-simple",
}
"""Outrider's method to the row of the table of expected counts."""
NGRAM = {"kind": "simple", "match": 4, "longest": 8}


def test_every_method_drafts_and_the_text_is_exact(make_stack: MakeStack, test_models: Path) -> None:
    stack = make_stack()
    for method, row in METHODS.items():
        expected = BY_NAME[row]
        stack.define(
            method,
            test_models / expected.target,
            drafter=test_models / expected.drafter if expected.drafter else None,
            method=method,
            draft_tokens=expected.n_max,
            speculation={"ngram": NGRAM},
        )
    with stack:
        views = stack.start(*METHODS)
        answers: dict[str, Any] = {m: stack.chat(m, TOKENS, PROMPT).json() for m in METHODS}
    assert [v["engine"]["method"] for v in views] == list(METHODS)
    seen = {
        method: (
            answer["choices"][0]["message"]["content"] == recital(TOKENS),
            answer["timings"].get("draft_n"),
            answer["timings"].get("draft_n_accepted"),
        )
        for method, answer in answers.items()
    }
    assert seen == {m: (True, BY_NAME[row].drafted, BY_NAME[row].accepted) for m, row in METHODS.items()}
