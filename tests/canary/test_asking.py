"""How each runtime is asked, and how its answers are read; which weights a plan launches; what is kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.canary import weights
from orchestrator.canary.asking import FLOOR, _of
from orchestrator.canary.records import Result
from orchestrator.canary.reference import Passage, Reference
from orchestrator.measured import Ran, Refuted
from orchestrator.plan import Method
from orchestrator.runtimes import adapter
from orchestrator.runtimes.scoring import Continued
from tests.canary.asked import Desk, a_plan

LLAMA = {
    "content": "g",
    "tokens": [103],
    "stop_type": "limit",
    "completion_probabilities": [
        {
            "id": 103,
            "token": "g",
            "logprob": -0.1,
            "top_logprobs": [{"id": 103, "logprob": -0.1}, {"id": 100, "logprob": -2.5}],
        }
    ],
}
VLLM = {
    "choices": [
        {
            "index": 0,
            "text": "g",
            "finish_reason": "length",
            "token_ids": [103],
            "logprobs": {
                "tokens": ["token_id:103"],
                "token_logprobs": [-0.1],
                "top_logprobs": [{"token_id:103": -0.1, "token_id:100": -2.5}],
            },
        }
    ]
}
SGLANG = {
    "text": "g",
    "meta_info": {
        "finish_reason": {"type": "length", "length": 1},
        "output_token_logprobs": [[-0.1, 103, None]],
        "output_top_logprobs": [[[-0.1, 103, None], [-2.5, 100, None]]],
    },
}
"""As `completion/serving.py` of vLLM 0.33.0 and `tokenizer_manager.py` of SGLang 0.5.23 write them."""


@pytest.mark.parametrize(("runtime", "answer"), [("llama.cpp", LLAMA), ("vllm", VLLM), ("sglang", SGLANG)])
def test_an_answer_is_read_alike_whoever_gives_it(runtime: str, answer: Any) -> None:
    scoring = adapter(runtime).scoring
    assert scoring.continued(answer) == Continued((103,), {103: -0.1, 100: -2.5}, ended=False)
    shapes: tuple[Any, ...] = (
        None,
        [],
        {},
        "x",
        {"choices": []},
        {"choices": [None]},
        {"meta_info": {}},
        {"tokens": ["a"]},
    )
    for shape in shapes:
        found = scoring.continued(shape)
        assert found is None or found == Continued(())
    assert scoring.tokens({"tokens": [1, 2]}) == (1, 2)
    assert scoring.tokens({"tokens": "no"}) is None


HUGE = 10**400
"""What JSON may say and no float can hold."""


@pytest.mark.parametrize("logprob", [None, "x", float("nan"), float("inf"), HUGE, True])
@pytest.mark.parametrize("rivals", [[], None, 5, "x", {"a": 1}, [[]], [{"id": 1, "logprob": HUGE}]])
def test_a_likelihood_that_is_no_number_is_none(logprob: Any, rivals: Any) -> None:
    """A kernel that computes NaN: llama.cpp writes null. Whatever else stands there breaks nothing either."""
    broken = {**LLAMA, "completion_probabilities": [{"id": 103, "logprob": logprob, "top_logprobs": rivals}]}
    assert adapter("llama.cpp").scoring.continued(broken) == Continued((103,), {})
    choice: Any = {
        "token_ids": [103],
        "finish_reason": "length",
        "logprobs": {"top_logprobs": [{"token_id:103": logprob, "9" * 5000: -1.0}]},
    }
    assert adapter("vllm").scoring.continued({"choices": [choice]}) == Continued((103,), {})
    meta: Any = {"output_token_logprobs": [[logprob, 103]], "output_top_logprobs": [rivals]}
    assert adapter("sglang").scoring.continued({"meta_info": meta}) == Continued((103,), {})


@pytest.mark.parametrize(
    ("runtime", "argv", "target", "chunks"),
    [
        ("llama.cpp", ("-m", "/models/a.gguf", "-ub", "256"), "/models/a.gguf", (256, 2048)),
        ("llama.cpp", ("-m", "/models/a.gguf", "-ub", "4096", "-b", "4096"), "/models/a.gguf", (4096,)),
        ("vllm", ("serve", "/models/m", "--served-model-name", "m"), "/models/m", (2048,)),
        ("sglang", ("-c", "x", "--model-path", "/models/m", "--chunked-prefill-size", "512"), "/models/m", (512,)),
    ],
)
def test_what_a_command_line_launches(runtime: str, argv: Sequence[str], target: str, chunks: tuple[int, ...]) -> None:
    scoring = adapter(runtime).scoring
    assert (scoring.target(argv), scoring.chunks(argv)) == (target, chunks)


def test_a_token_that_is_not_named_is_no_likelier_than_what_is_left() -> None:
    assert _of(Continued((1,), {1: -0.1}), 1) == -0.1
    assert _of(Continued((1,), {1: 0.0}), 2) == FLOOR, "nothing is left"
    assert _of(Continued((1,), {1: math.log(0.9), 3: math.log(0.09)}), 2) == pytest.approx(math.log(0.01))
    assert _of(Continued((1,), {1: math.log(0.3), 3: math.log(0.2)}), 2) == pytest.approx(math.log(0.2))


def test_weights_are_named_by_what_is_in_them(tmp_path: Path) -> None:
    one, copy, other = (tmp_path / f"{n}.gguf" for n in ("one", "copy", "other"))
    body = bytes(range(256)) * 4096 * 12  # more than is read whole
    one.write_bytes(body)
    copy.write_bytes(body)
    other.write_bytes(body[:-1] + b"x")
    digest = {file: weights.digest(a_plan(file)) for file in (one, copy, other)}
    assert digest[one] == digest[copy] is not None
    assert digest[other] != digest[one]
    assert weights.digest(a_plan(tmp_path / "gone.gguf")) is None


def test_all_parts_of_a_split_file_count(tmp_path: Path) -> None:
    parts = [tmp_path / f"m-0000{n}-of-00002.gguf" for n in (1, 2)]
    for part in parts:
        part.write_bytes(b"x")
    before = weights.digest(a_plan(parts[0]))
    parts[1].write_bytes(b"y")
    assert weights.digest(a_plan(parts[0])) != before
    parts[1].unlink()
    assert weights.digest(a_plan(parts[0])) is None


RAN = Ran("m", "f32", "llama.cpp", "b1", "cpu", Method.DFLASH, "d")


def result(engine: str, *, passed: bool, whole: bool = True, image: str = "i") -> Result:
    return Result(RAN, None, image, "p", engine, passed, whole, "r", 1.0, "2026-11-30")


async def test_failures_in_a_row_count_engines_of_one_image(desk: Desk) -> None:
    records = desk.records
    await records.note(result("a", passed=False))
    await records.note(result("a", passed=False))
    assert await records.failing(RAN, None, "i") == ("a",), "one engine asked twice is one"
    await records.note(result("b", passed=False, image="other"))
    assert await records.failing(RAN, None, "i") == ("a",), "another image is another program"
    await records.note(result("b", passed=False))
    assert await records.failing(RAN, None, "i") == ("b", "a")
    await records.note(result("c", passed=True))
    assert await records.failing(RAN, None, "i") == ()


async def test_a_new_plan_image_or_driver_is_asked_wholly(desk: Desk) -> None:
    await desk.records.note(result("a", passed=True, whole=False))
    assert not await desk.records.passed_whole("p", "i", None)
    await desk.records.note(result("a", passed=True))
    assert await desk.records.passed_whole("p", "i", None)
    assert not await desk.records.passed_whole("p", "other image", None)
    assert not await desk.records.passed_whole("other plan", "i", None)
    assert not await desk.records.passed_whole("p", "i", "595.2"), "another driver"


async def test_what_was_learned_can_be_forgotten(desk: Desk) -> None:
    known = Reference({str(n): Passage((1,), (2,), (-0.1,)) for n in range(3)}, {})
    await desk.records.keep("w", "m", known, 1.0)
    await desk.records.refute(RAN, None, Refuted("wrong", "canaries", "2026-11-30"), 1.0)
    await desk.observing.read()
    assert list(desk.observing.known.refuted) == [RAN]
    assert await desk.records.reference("w", ("0", "1", "2")) == known
    await desk.observing.forget("another")
    assert await desk.records.reference("w", ("0",)) == known
    assert await desk.observing.forget("m") == 1
    assert desk.observing.known.refuted == {}
    assert await desk.records.reference("w", ("0",)) is None
