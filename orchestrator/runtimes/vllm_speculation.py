"""The JSON of vLLM's `--speculative-config`, and what its checks would say to it.

An unknown key is a hard error there (`config/utils.py:59`), so each is said only to a version that knows it.
File and line are of 0.33.0's wheel. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.kinds import Backend
from orchestrator.plan import NEEDS_DRAFTER, Method, Reason
from orchestrator.runtimes.base import LaunchRequest
from orchestrator.runtimes.vllm_attention import WHEEL, stored_as
from orchestrator.runtimes.vllm_flags import METHODS, SPECULATION, Word, knows, unknown

NAMES: Mapping[Method, str] = {
    Method.NGRAM: "ngram",
    Method.DRAFT: "draft_model",
    Method.EAGLE3: "eagle3",
    Method.MTP: "mtp",
    Method.DFLASH: "dflash",
    Method.DSPARK: "dspark",
}
_CANNOT_DO_WITHOUT = NEEDS_DRAFTER - {Method.DSPARK}
"""DSpark's drafter may be in the target (`config/speculative.py:1269`)."""
BLOCKS = frozenset({Method.DFLASH, Method.DSPARK})
NGRAM_LEAST = 8
"""Shorter n-gram matches corrupt tool calls (vllm#40875)."""

_GONE: Mapping[str, str] = {"medusa": "0.33.0", "mlp_speculator": "0.33.0"}
"""Methods that were removed, and by which version."""
_STRANGE = {
    "suffix": "it needs arctic-inference in the image and the older model runner",
    "custom_class": "it runs Python code of its own",
    "eagle": "its drafters are those of EAGLE 1 and 2; Outrider drafts with eagle3",
    "extract_hidden_states": "it drafts nothing",
}

SCHEDULE_RUNNER: Mapping[Method, Word] = {
    **{
        method: Word("config/vllm.py:3053", since="0.25.0")
        for method in (Method.EAGLE3, Method.MTP, Method.DFLASH, Method.DSPARK)
    },
    Method.DRAFT: Word("config/vllm.py:3053", since="0.31.0"),
    Method.NGRAM: Word("config/vllm.py:3053", since="0.32.0"),
}
"""Since when model runner V2 drafts by a schedule with a method; on the older runner schedules collapse
(vllm#49548: eight streams fell from 232 to 24-157 tok/s)."""
_SCHEDULE_CPU = frozenset({Method.NGRAM, Method.EAGLE3, Method.MTP, Method.DRAFT, Method.DFLASH})
"""Without a GPU there is only the older runner, and it honours schedules with these (`config/vllm.py:1089`)."""


def method_of(name: str) -> tuple[Method | None, str | None]:
    """Outrider's word for vLLM's name of a method, old names included; else why there is none."""
    said = name.strip("[]").lower()
    for method, theirs in NAMES.items():
        if said == theirs:
            return method, None
    if said.endswith("_mtp"):
        return Method.MTP, None  # the model's own name of it, replaced by `mtp` (`config/speculative.py:1226`)
    if said in _GONE:
        return None, f"vLLM {_GONE[said]} has no method {said} any more"
    return None, f"Outrider does not draft with {said}: {_STRANGE.get(said, 'vLLM has no such method')}"


def can_schedule(method: Method, backend: Backend, version: str | None) -> bool:
    """Whether draft lengths by running requests can be said to this version, and are carried out well."""
    if not knows(SPECULATION["num_speculative_tokens_per_batch_size"], version):
        return False
    if backend is Backend.CPU:
        return method in _SCHEDULE_CPU
    word = SCHEDULE_RUNNER.get(method)
    return word is not None and knows(word, version)


def lookahead(request: LaunchRequest) -> int:
    """Tokens that a request may take beyond those it was scheduled for (`config/vllm.py:626`)."""
    if request.method in BLOCKS:
        return request.draft_tokens + 1
    return 0 if request.method in (Method.NONE, Method.NGRAM) else request.draft_tokens


def most_sequences(request: LaunchRequest, batch: int) -> int | None:
    """How many requests a block drafter can serve in a batch of so many tokens: vLLM lowers max_num_seqs to
    that, with a warning only (`config/vllm.py:2384`). None: the method sets no limit."""
    return batch // lookahead(request) if request.method in BLOCKS else None


def config(request: LaunchRequest, dtype: str) -> dict[str, Any]:
    """The JSON. `method` is always said: vLLM would guess it from path names."""
    said: dict[str, Any] = {"method": NAMES[request.method]}
    if request.drafter is not None and request.method in NEEDS_DRAFTER:
        said["model"] = request.drafter
    said["num_speculative_tokens"] = request.draft_tokens
    if request.method is Method.NGRAM:
        least = request.settings.ngram_least or NGRAM_LEAST
        said["prompt_lookup_max"] = max(request.ngram.match, least)
        said["prompt_lookup_min"] = least
    else:
        if request.draft_tensor_parallel is not None and request.tensor_parallel > 1:
            said["draft_tensor_parallel_size"] = request.draft_tensor_parallel
        if request.settings.draft_attention_backend is not None and request.backend is not Backend.CPU:
            said["attention_backend"] = request.settings.draft_attention_backend
        if request.settings.draft_kv is not None:
            said["kv_cache_dtype"] = stored_as(request.settings.draft_kv, dtype)
    if request.schedule:
        said["num_speculative_tokens_per_batch_size"] = [list(tier) for tier in request.schedule]
    return said


def refused(request: LaunchRequest, dtype: str) -> Reason | None:
    """Why vLLM would refuse this speculation, or carry out another."""
    if request.method is Method.NONE:
        return None
    for code, text, source in (
        *_lengths(request), *_drafters(request), *_schedules(request),
        ("unknown_key", _key(request, dtype), "config/utils.py:59"),
    ):  # fmt: skip
        if text is not None:
            return Reason(code, text, f"{WHEEL} {source}")
    return None


def _lengths(request: LaunchRequest) -> list[tuple[str, str | None, str]]:
    short = "num_speculative_tokens must be above 0" if request.draft_tokens < 1 else None
    small = many = None
    ahead = lookahead(request)
    if request.batch is not None:
        if request.batch <= max(ahead, request.draft_tokens + 1):
            small = f"{request.batch} batched tokens do not hold one verification of {request.draft_tokens + 1}"
        most = most_sequences(request, request.batch)
        if most is not None and most < request.parallel:
            many = (
                f"{request.batch} batched tokens hold the drafts of {most} requests, not of {request.parallel}: vLLM"
                f" would serve {most}; {request.parallel * ahead} are needed"
            )
    return [
        ("no_draft_tokens", short, "config/speculative.py:413"),
        ("batch_too_small", small, "config/vllm.py:2371"),
        ("batch_too_small", many, "config/vllm.py:2384"),
    ]


def _drafters(request: LaunchRequest) -> list[tuple[str, str | None, str]]:
    missing = width = None
    if request.method in _CANNOT_DO_WITHOUT and request.drafter is None:
        missing = f"{request.method} needs a drafter"
    own = request.draft_tensor_parallel
    if own is not None and own not in (1, request.tensor_parallel):
        width = f"a drafter is split over 1 or all {request.tensor_parallel} devices, not over {own}"
    return [
        ("unknown_method", unknown("the method", NAMES[request.method], METHODS, request.version),
         "config/speculative.py:74"),
        ("no_drafter", missing, "config/speculative.py:1293"),
        ("draft_tensor_parallel", width, "config/speculative.py:1866"),
    ]  # fmt: skip


def _schedules(request: LaunchRequest) -> list[tuple[str, str | None, str]]:
    if not request.schedule:
        return []
    cannot = None
    if not can_schedule(request.method, request.backend, request.version):
        here = f"vLLM {request.version}" if request.version else "vLLM of an unknown version"
        word = SCHEDULE_RUNNER[request.method]
        cannot = (
            f"{here} does not change {request.method}'s draft length by load, or collapses when it does: from"
            f" {word.since} on it does well"
        )
    return [
        ("no_schedule", cannot, "config/vllm.py:1074; vllm#49548"),
        ("bad_schedule", _bad_schedule(request), "v1/spec_decode/dynamic/utils.py:8"),
    ]


def _bad_schedule(request: LaunchRequest) -> str | None:
    end = 0
    for first, last, length in request.schedule:
        if first != end + 1 and (end == 0 or first <= end):
            return f"the schedule's ranges must begin with 1 and follow each other: {first} comes after {end}"
        if last < first or not 0 <= length <= request.draft_tokens:
            return (
                f"the schedule's range {first} to {last} with {length} of {request.draft_tokens} draft tokens is none"
            )
        end = last
    return None


def _key(request: LaunchRequest, dtype: str) -> str | None:
    for key in config(request, dtype):
        found = unknown("the key", key, SPECULATION, request.version)
        if found is not None:
            return found
    return None
