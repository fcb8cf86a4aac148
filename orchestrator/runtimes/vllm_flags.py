"""Which version of vLLM knows which word: flags, `--speculative-config` keys, environment variables, choices.

Read off the wheels of every minor version from 0.20.0 to 0.33.0 (`tests/runtimes/vllm/surfaces.json` keeps what was
found there, with the wheels' digests, and a test holds these tables against it). `source` is file and line of
0.33.0. vLLM takes an unknown flag or key of its JSON for a hard error, so nothing is said that a version does
not know; of a version that is not known, only what all of them know. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.catalogue.versions import version_numbers
from orchestrator.kinds import KvType

OLDEST, NEWEST = "0.20.0", "0.33.0"
"""The versions that are supported. A newer one is taken for the newest."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word of vLLM's: the first version that knows it, the first that does not any more, where it stands."""

    source: str
    since: str = OLDEST
    until: str | None = None


def _said(file: str, lines: Mapping[str, int]) -> dict[str, Word]:
    return {name: Word(f"{file}:{line}") for name, line in lines.items()}


FLAGS: Mapping[str, Word] = {
    **_said(
        "engine/arg_utils.py",
        {
            "--trust-remote-code": 975, "--dtype": 977, "--max-model-len": 991, "--enforce-eager": 1000,
            "--served-model-name": 1031, "--attention-backend": 1114, "--tensor-parallel-size": 1209,
            "--gpu-memory-utilization": 1389, "--kv-cache-memory-bytes": 1395, "--kv-cache-dtype": 1397,
            "--enable-prefix-caching": 1402, "--no-enable-prefix-caching": 1402, "--mamba-ssm-cache-dtype": 1428,
            "--language-model-only": 1497, "--max-num-batched-tokens": 1740, "--max-num-seqs": 1754,
            "--moe-backend": 1845, "--speculative-config": 1866, "--compilation-config": 1891,
        },
    ),
    **_said("entrypoints/common/cli_args.py", {"--uds": 313, "--host": 286, "--port": 288}),
    # from 0.33.0 on it has no effect, and is to be removed: states are then kept as prefix caching is
    "--mamba-cache-mode": Word("engine/arg_utils.py:1437", until="0.33.0"),
}  # fmt: skip
"""Every flag that the adapter can emit."""

SPECULATION: Mapping[str, Word] = {
    **_said(
        "config/speculative.py",
        {
            "num_speculative_tokens": 413, "model": 416, "method": 419, "draft_tensor_parallel_size": 427,
            "prompt_lookup_max": 503, "prompt_lookup_min": 506,
        },
    ),
    "attention_backend": Word("config/speculative.py:444", since="0.21.0"),
    "kv_cache_dtype": Word("config/speculative.py:448", since="0.26.0"),
    "num_speculative_tokens_per_batch_size": Word("config/speculative.py:524", since="0.24.0"),
}  # fmt: skip
"""Every key of `--speculative-config` that the adapter can emit."""

METHODS: Mapping[str, Word] = {
    **_said(
        "config/speculative.py",
        {"mtp": 39, "dflash": 69, "eagle3": 72, "ngram": 75, "draft_model": 76},
    ),
    "dspark": Word("config/speculative.py:70", since="0.25.0"),
}
"""Every value of `method` that the adapter can emit."""

_SPELT = {KvType.F16: "float16", KvType.BF16: "bfloat16"}
KV_TYPES: Mapping[str, Word] = {
    **_said(
        "config/cache.py",
        {
            "auto": 45, "float16": 46, "bfloat16": 47, "fp8": 48, "fp8_e4m3": 49, "fp8_e5m2": 50,
            "int8_per_token_head": 63,
        },
    ),
    "int4_per_token_head": Word("config/cache.py:62", since="0.25.0"),
}  # fmt: skip
"""Values of `--kv-cache-dtype` that Outrider has words for."""

ATTENTION_BACKENDS: Mapping[str, Word] = {
    **{
        name: Word("v1/attention/backends/registry.py")
        for name in (
            "FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION", "ROCM_ATTN", "ROCM_AITER_FA",
            "ROCM_AITER_UNIFIED_ATTN", "TRITON_MLA", "ROCM_AITER_MLA", "ROCM_AITER_TRITON_MLA", "FLASHMLA",
            "FLASH_ATTN_MLA", "FLASHINFER_MLA", "CUTLASS_MLA", "CPU_ATTN", "TURBOQUANT",
        )
    },
    "TOKENSPEED_MLA": Word("v1/attention/backends/registry.py", since="0.21.0"),
    "CPU_MLA": Word("v1/attention/backends/registry.py", since="0.28.0"),
    "TRITON_FLASH_ATTN": Word("v1/attention/backends/registry.py", since="0.30.0"),
    "ROCM_SEGMENTED_ATTN": Word("v1/attention/backends/registry.py", since="0.32.0"),
}  # fmt: skip
"""Values of `--attention-backend` that may be asked for."""

ENVIRONMENT: Mapping[str, Word] = {
    **_said(
        "envs.py",
        {
            "VLLM_DISABLE_COMPILE_CACHE": 376, "VLLM_CACHE_ROOT": 714, "VLLM_HOST_IP": 724, "VLLM_API_KEY": 829,
            "VLLM_NO_USAGE_STATS": 842, "VLLM_CPU_KVCACHE_SPACE": 896, "VLLM_CPU_OMP_THREADS_BIND": 903,
            "VLLM_USE_TRITON_AWQ": 1189, "VLLM_ROCM_USE_AITER": 1267, "VLLM_USE_V2_MODEL_RUNNER": 2149,
        },
    ),
    "VLLM_DO_NOT_TRACK": Word("envs.py:843"),
}  # fmt: skip
"""Environment variables of vLLM's own that may be set; those of other libraries are not its to refuse."""

MOE_BACKENDS: Mapping[str, Word] = {
    name: Word("config/kernel.py:122")
    for name in ("auto", "triton", "marlin", "cutlass", "flashinfer_cutlass", "aiter")
}
"""Values of `--moe-backend` that may be asked for."""


def too_old(version: str | None) -> bool:
    """Whether a version is known, and older than what is supported."""
    have = () if version is None else version_numbers(version)
    return bool(have) and have < version_numbers(OLDEST) and not _or_newer(version)


def knows(word: Word, version: str | None) -> bool:
    """Whether a version knows the word; an unknown version knows what all of them know, and `0.26.0+` (that one or
    a newer) what all from there on know."""
    have = () if version is None else version_numbers(version)
    if not have:
        return word.since == OLDEST and word.until is None
    if max(have, version_numbers(OLDEST)) < version_numbers(word.since):
        return False
    return word.until is None or (have < version_numbers(word.until) and not _or_newer(version))


def _or_newer(version: str | None) -> bool:
    return version is not None and version.endswith("+")


def at_least(version: str | None, bound: str) -> bool:
    """Whether a version is known to be this one or newer."""
    have = () if version is None else version_numbers(version)
    return bool(have) and have >= version_numbers(bound)


def kv_name(kv: KvType) -> str:
    """vLLM's spelling of a KV type."""
    return _SPELT.get(kv, kv.value)


def unknown(kind: str, name: str, words: Mapping[str, Word], version: str | None) -> str | None:
    """Why a word cannot be said to this version, as a sentence with the versions that know it; None when it can."""
    word = words.get(name)
    if word is not None and knows(word, version):
        return None
    here = f"vLLM {version}" if version else "vLLM of an unknown version"
    if word is None:
        return f"{kind} {name} is none of those that are known of vLLM: {', '.join(sorted(words))}"
    span = f"from {word.since}" if word.until is None else f"from {word.since}, before {word.until}"
    return f"{here} does not know {kind} {name} for certain: versions {span} do"
