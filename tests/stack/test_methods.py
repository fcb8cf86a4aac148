"""Every method of speculation, through the daemon, in Podman: exact text, exact counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.expected import EXPECTED
from tests.models.tokenizer import recital
from tests.stack.conftest import MakeStack

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]
TOKENS = 256
NGRAM = {"kind": "simple", "match": 4, "longest": 8}


def test_every_method_drafts_and_the_text_is_exact(make_stack: MakeStack, test_models: dict[str, Path]) -> None:
    stack = make_stack()
    for case in EXPECTED.values():
        stack.define(
            case.method,
            test_models[case.target],
            drafter=test_models[case.drafter] if case.drafter else None,
            method=case.method,
            draft_tokens=case.draft_tokens,
            speculation={"ngram": NGRAM},
        )
    with stack:
        stack.start(*(case.method for case in EXPECTED.values()))
        answers: dict[str, Any] = {case.method: stack.chat(case.method, TOKENS).json() for case in EXPECTED.values()}
    seen = {
        method: (
            answer["choices"][0]["message"]["content"] == recital(TOKENS),
            answer["timings"].get("draft_n"),
            answer["timings"].get("draft_n_accepted"),
        )
        for method, answer in answers.items()
    }
    assert seen == {case.method: (True, case.drafted, case.accepted) for case in EXPECTED.values()}
