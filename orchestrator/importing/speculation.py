"""Speculation in the words of vLLM's `--speculative-config`, its legacy flags and n-gram lookups. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from orchestrator.importing.recipe import Recipe, Said
from orchestrator.models import Ngram
from orchestrator.runtimes.vllm_speculation import NGRAM_LEAST, method_of

VLLM_SOURCE = "vLLM 0.33.0 config/speculative.py"
_DRAFT_ONLY = frozenset({
    "quantization", "moe_backend", "attention_backend", "kv_cache_dtype", "max_model_len", "code_revision",
    "draft_load_config", "enforce_eager", "draft_tensor_parallel_size", "draft_lm_head_quantization",
    "index_share_for_mtp_iteration", "disable_padded_drafter_batch", "disable_eagle_block_drop",
    "disable_lookahead_block_hashes", "use_local_argmax_reduction", "use_heterogeneous_vocab", "parallel_drafting",
    "suffix_decoding_max_tree_depth", "suffix_decoding_max_cached_requests", "suffix_decoding_max_spec_factor",
    "suffix_decoding_min_token_prob", "enable_adaptive_verification", "draft_sample_method", "dspark_draft_topk",
    "xpress_topc", "fly_window_size", "fly_entropy_threshold", "fly_entropy_top_k",
})  # fmt: skip
LEGACY: Mapping[str, str] = {
    "--spec-method": "method",
    "--spec-model": "model",
    "--spec-tokens": "num_speculative_tokens",
    "--speculative-model": "model",
    "--num-speculative-tokens": "num_speculative_tokens",
}


def config(recipe: Recipe, text: str) -> None:
    """`--speculative-config JSON`."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        recipe.refuse("bad_value", f"--speculative-config: {text[:200]} is no JSON")
        return
    if not isinstance(value, dict):
        recipe.refuse("bad_value", "--speculative-config must be a JSON object")
        return
    keys(recipe, value)


def legacy(recipe: Recipe, said: Said) -> None:
    """`--spec-method` and its like."""
    why = "the flags still exist and are merged into --speculative-config; Outrider keeps one form"
    recipe.change("legacy_spec_flags", said.text, "--speculative-config", why, "vLLM 0.33.0 engine/arg_utils.py:1869")
    keys(recipe, {LEGACY[said.flag]: said.value})


def keys(recipe: Recipe, value: Mapping[str, Any]) -> None:
    """The keys of the JSON object, one by one."""
    for key, inner in value.items():
        was = f"speculative_config.{key}={json.dumps(inner)[:200]}"
        if key == "method":
            _method(recipe, str(inner))
        elif key == "model":
            recipe.drafter = str(inner)
        elif key == "num_speculative_tokens":
            _tokens(recipe, inner, was)
        elif key == "rejection_sample_method":
            _rejection(recipe, str(inner), was)
        elif key in ("prompt_lookup_max", "prompt_lookup_min"):
            _lookup(recipe, key, inner, was)
        elif key == "num_speculative_tokens_per_batch_size":
            recipe.ours(was, "the table is made from where speculation stops paying on this host")
        elif key in ("disable_by_batch_size", "speculative_disable_by_batch_size"):
            recipe.change("removed_flag", was, None, "vLLM 0.33.0 refuses the key: it is gone", VLLM_SOURCE)
        elif key in _DRAFT_ONLY:
            recipe.not_carried(was, "the drafter's own setting is chosen by the planner, or left to vLLM")
        else:
            why = "vLLM takes an unknown key for an error: it is left out"
            recipe.change("unknown_flag", was, None, why, VLLM_SOURCE)


def _method(recipe: Recipe, name: str) -> None:
    method, why = method_of("ngram" if name == "ngram_gpu" else name)
    if method is None:
        recipe.refuse("method_unsupported", why or name, VLLM_SOURCE)
        return
    if name.endswith("_mtp"):
        recipe.change("renamed", f"method {name}", "mtp", "the method is called mtp for every model", VLLM_SOURCE)
    recipe.method = method


def _tokens(recipe: Recipe, inner: object, was: str) -> None:
    try:
        number = int(str(inner))
    except ValueError:
        number = 0
    if 0 < number <= 64:
        recipe.draft_tokens = number
    else:
        recipe.refuse("bad_value", f"{was}: 1 to 64 tokens can be drafted")


def _rejection(recipe: Recipe, name: str, was: str) -> None:
    if name == "standard":
        return
    if name in ("strict", "probabilistic"):
        why = f"{name!r} is no legal value any more; `standard`, the default, is the lossless one"
        recipe.change("rejection_strict", was, "standard", why, VLLM_SOURCE + ":83")
    else:
        recipe.change("rejection_lossy", was, "standard", f"{name!r} changes what the model says", VLLM_SOURCE + ":83")


def _lookup(recipe: Recipe, key: str, inner: object, was: str) -> None:
    try:
        number = min(max(int(str(inner)), 1), 256)
    except ValueError:
        recipe.refuse("bad_value", f"{was}: a whole number is needed")
        return
    if key == "prompt_lookup_min" and number < NGRAM_LEAST:
        why = f"short matches corrupt tool calls: at least {NGRAM_LEAST} tokens must match"
        recipe.change("ngram_least", was, str(NGRAM_LEAST), why, "vllm-project/vllm#40875")
        number = NGRAM_LEAST
    if key == "prompt_lookup_min" or recipe.ngram is None:
        recipe.ngram = Ngram(kind="simple", match=number)
