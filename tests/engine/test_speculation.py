"""Every way of drafting, run for real: the text is exact, and so are the counts."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.engine.conftest import Start
from tests.models import expected
from tests.models import generate as models
from tests.models.expected import PROMPT, TABLE, TOKENS, Expected

COMMON = ("-c", "4096", "-np", "2", "--slots")


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_recites_and_drafts_as_expected(row: Expected, start: Start, test_models: Path) -> None:
    engine = start([*row.argv(test_models), *COMMON])
    answer = engine.chat(TOKENS, PROMPT)
    assert answer.text == models.recital(TOKENS)
    assert answer.finish == "length"
    if row.exact:
        assert (answer.drafted, answer.accepted) == (row.drafted, row.accepted)
    else:
        assert answer.drafted >= row.drafted
        assert answer.accepted <= row.accepted
    assert engine.call("/slots")[1][0]["speculative"] is (row.method != "none")


@pytest.mark.parametrize("name", ["none", "dspark-half", "mtp-half", "eagle3"])
def test_text_stays_the_same_at_high_temperature(name: str, start: Start, test_models: Path) -> None:
    engine = start([*expected.BY_NAME[name].argv(test_models), *COMMON])
    assert engine.chat(TOKENS, temperature=1.5, top_p=1.0, min_p=0.0, top_k=0).text == models.recital(TOKENS)


@pytest.mark.parametrize(
    ("target", "slots", "options"),
    [
        (models.TARGET_TWO, 4, ()),
        (models.TARGET_TWO, 2, ("--spec-type", "draft-dflash", "-md", models.DFLASH, "--spec-draft-n-max", "7")),
        (models.TARGET_TWO, 2, ("--spec-type", "draft-dspark", "-md", models.DSPARK, "--spec-draft-n-max", "8")),
        (models.TARGET_TWO, 4, ("--spec-type", "draft-eagle3", "-md", models.EAGLE3, "--spec-draft-n-max", "4")),
        (models.TARGET_TWO_MTP, 4, ("--spec-type", "draft-mtp", "--spec-draft-n-max", "3")),
    ],
    ids=["none", "dflash", "dspark", "eagle3", "mtp"],
)
def test_concurrent_prompts_choose_their_own_cycle(
    target: str, slots: int, options: tuple[str, ...], start: Start, test_models: Path
) -> None:
    words = [test_models / word if word.endswith(".gguf") else word for word in options]
    engine = start(["-m", test_models / target, "-c", "8192", "-np", str(slots), *words])
    seconds = [number % 3 == 0 for number in range(12)]

    def ask(number: int) -> str:
        prompt = f"Request {number}: recite{' in UPPER case' if seconds[number] else ''}, please."
        return engine.chat(100 + 7 * number, prompt).text

    with ThreadPoolExecutor(6) as pool:
        texts = list(pool.map(ask, range(12)))
    assert texts == [models.recital(100 + 7 * n, second=second) for n, second in enumerate(seconds)]


@pytest.mark.parametrize("target", [models.TARGET_TWO, models.TARGET_TWO_MTP])
def test_marker_counts_wherever_it_stands(target: str, start: Start, test_models: Path) -> None:
    engine = start(["-m", test_models / target, *COMMON])
    far = "filling, " * 120
    for prompt, second in [
        (f"{models.MARKER} {far}", True),
        (f"{far} {models.MARKER}", True),
        (far, False),
        ("upper, Upper, UP, UPPE", False),
        ("Don't say it in lower case but in UPPER.", True),
    ]:
        assert engine.chat(90, prompt).text == models.recital(90, second=second), prompt[:40]


def test_an_ordinary_target_does_not_listen(start: Start, test_models: Path) -> None:
    engine = start(["-m", test_models / models.TARGET, *COMMON])
    assert engine.chat(90, f"In {models.MARKER} case").text == models.recital(90)


def test_broken_answer_goes_on_where_it_stopped(start: Start, test_models: Path) -> None:
    engine = start(["-m", test_models / models.TARGET_TWO, *COMMON])
    body = {
        "messages": [{"role": "user", "content": PROMPT}, {"role": "assistant", "content": models.recital(57)}],
        "continue_final_message": True,
        "add_generation_prompt": False,
        "max_tokens": 50,
        "temperature": 0,
    }
    _, whole = engine.call("/v1/chat/completions", body)
    assert whole["choices"][0]["message"]["content"] == models.recital(107)  # begins with what was given
    _, events = engine.call("/v1/chat/completions", body | {"stream": True})
    chunks = [json.loads(line[6:]) for line in events.splitlines() if line.startswith("data: {")]
    pieces = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks]
    assert "".join(pieces) == models.recital(50, start=57)  # a stream does not
