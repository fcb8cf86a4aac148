"""What SGLang itself makes of a plan's speculation: its handlers, out of its wheel, as on a CUDA GPU.

This is beyond its parser: the arithmetic of blocks and windows, what it sets silently, and what it refuses.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.kinds import Backend
from orchestrator.models import Runtime
from orchestrator.plan import Method
from orchestrator.runtimes import LaunchRequest, adapter
from orchestrator.settings import Settings
from tests.coverage import launches
from tests.coverage.sglang_record import resolve

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SGLANG = adapter(Runtime.SGLANG)
DRAFTED, PARALLEL = 7, 4
REQUEST = LaunchRequest(
    model="/models/m",
    names=("m",),
    drafter="/models/d",
    draft_tokens=DRAFTED,
    parallel=PARALLEL,
    backend=Backend.CUDA,
    arch="sm_90",
    version="0.5.23",
)
SPECULATIVE = tuple(method for method in Method if method is not Method.NONE)
GPU = ("--device", "cuda", "--page-size", "16")
"""What earlier steps of its resolution, which need a GPU, would have found."""


def argv(request: LaunchRequest) -> tuple[str, ...]:
    words = launches.arguments(request, SGLANG.command(request))
    return (*("8080" if word == "{port}" else word for word in words), *GPU)


def test_windows_and_running_requests_are_those_of_the_plan() -> None:
    answers = resolve([argv(replace(REQUEST, method=method)) for method in SPECULATIVE])
    for method, answer in zip(SPECULATIVE, answers, strict=True):
        assert "error" not in answer, (method, answer)
        assert answer["speculative_num_draft_tokens"] == DRAFTED + 1, method
        assert answer["max_running_requests"] == PARALLEL, method
        if method in (Method.MTP, Method.EAGLE3, Method.DRAFT):
            assert answer["speculative_num_steps"] == DRAFTED, method
        assert answer["speculative_eagle_topk"] == 1, method


def test_a_drafter_keeps_the_attention_backend_that_was_said() -> None:
    names = {"FLASHINFER": "flashinfer", "TRITON_ATTN": "triton", "FLASH_ATTN": "fa3"}
    requests = [
        argv(replace(REQUEST, method=Method.DFLASH, settings=Settings(draft_attention_backend=name))) for name in names
    ]
    assert [answer["speculative_draft_attention_backend"] for answer in resolve(requests)] == [*names.values()]


def test_what_is_left_unsaid_is_set_silently() -> None:
    """Why --max-running-requests is always said."""
    plain = ("--model-path", "/m", "--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", "/d", *GPU)
    (answer,) = resolve([plain])
    assert answer["max_running_requests"] == 48
    assert answer["speculative_num_draft_tokens"] == 16  # whatever the drafter was trained for: its config is not there


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("DFLASH",), "requires setting --speculative-draft-model-path"),
        (("DFLASH", "--speculative-draft-model-path", "/d", "--pp-size", "2"), "pp_size == 1"),
        (("DFLASH", "--speculative-draft-model-path", "/d", "--speculative-dflash-block-size", "0"), "positive"),
        (
            (
                *("DFLASH", "--speculative-draft-model-path", "/d"),
                *("--speculative-dflash-block-size", "8", "--speculative-num-draft-tokens", "7"),
            ),
            "must match",
        ),
        (
            (
                *("DSPARK", "--speculative-draft-model-path", "/d"),
                *("--speculative-dspark-block-size", "7", "--speculative-num-draft-tokens", "7"),
            ),
            "gamma + 1",
        ),
        (("DFLASH", "--speculative-draft-model-path", "/d", "--device", "cpu"), "is not supported"),
        (("DSPARK", "--speculative-draft-model-path", "/d", "--device", "cpu"), "only supports CUDA"),
        (("NGRAM", "--device", "hpu"), "only supports CUDA"),
    ],
)
def test_what_it_refuses(words: tuple[str, ...], says: str) -> None:
    (answer,) = resolve([("--model-path", "/m", *GPU, "--speculative-algorithm", *words)])
    assert says in answer["error"]
