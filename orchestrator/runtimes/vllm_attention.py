"""Which attention backends of vLLM go with which GPU, KV type and method; what to name, and what would not start.

Every rule is one of vLLM's own checks, foretold: file and line are of 0.33.0's wheel. Since 0.21.0 a drafter
never inherits its target's backend (`v1/spec_decode/llm_base_proposer.py:1281`), it chooses for itself unless
`speculative_config.attention_backend` says so. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from orchestrator.kinds import Backend, KvType
from orchestrator.plan import Method, Reason
from orchestrator.runtimes.base import LaunchRequest
from orchestrator.runtimes.vllm_flags import ATTENTION_BACKENDS, KV_TYPES, Word, at_least, knows, kv_name, unknown

WHEEL = "vLLM 0.33.0"
NON_CAUSAL_METHODS = frozenset({Method.DFLASH, Method.DSPARK})
"""They draft a block at once, each token of which sees the whole block."""
AMPERE_PAIRS = "bfloat16 with FLASH_ATTN, fp8 with FLASHINFER, int8_per_token_head with TRITON_ATTN"

NON_CAUSAL: Mapping[str, Word] = {
    "FLASH_ATTN": Word("v1/attention/backends/flash_attn.py:398"),
    "FLEX_ATTENTION": Word("v1/attention/backends/flex_attention.py:117"),
    "ROCM_ATTN": Word("v1/attention/backends/rocm_attn.py:187"),
    "ROCM_AITER_FA": Word("v1/attention/backends/rocm_aiter_fa.py:996"),
    "TRITON_ATTN": Word("v1/attention/backends/triton_attn.py:351", since="0.24.0"),
    "FLASHINFER": Word("v1/attention/backends/flashinfer.py:611", since="0.24.0"),
    "CPU_ATTN": Word("v1/attention/backends/cpu_attn.py:91", since="0.25.0"),
    "TRITON_MLA": Word("v1/attention/backends/mla/triton_mla.py:144", since="0.27.0"),
    "FLASHINFER_MLA": Word("v1/attention/backends/mla/flashinfer_mla.py:224", since="0.27.0"),
    "TOKENSPEED_MLA": Word("v1/attention/backends/mla/tokenspeed_mla.py:129", since="0.28.0"),
    "ROCM_AITER_MLA": Word("v1/attention/backends/mla/rocm_aiter_mla.py:526", since="0.30.0"),
    "ROCM_SEGMENTED_ATTN": Word("v1/attention/backends/rocm_segmented_attn.py:102", since="0.32.0"),
}
"""Backends whose `supports_non_causal` is true. ROCM_AITER_UNIFIED_ATTN's is false (rocm_aiter_unified_attn.py:100)."""

_SIXTEEN = frozenset({"auto", "float16", "bfloat16"})
_FP8 = frozenset({"fp8", "fp8_e4m3", "fp8_e5m2"})
_PER_TOKEN = frozenset({"int8_per_token_head", "int4_per_token_head"})
STORES: Mapping[str, tuple[frozenset[str], str]] = {
    "FLASH_ATTN": (_SIXTEEN | {"fp8", "fp8_e4m3"}, "v1/attention/backends/flash_attn.py:290"),
    "FLASHINFER": (_SIXTEEN | _FP8, "v1/attention/backends/flashinfer.py:573"),
    "TRITON_ATTN": (_SIXTEEN | _FP8 | _PER_TOKEN, "v1/attention/backends/triton_attn.py:326"),
    "FLEX_ATTENTION": (_SIXTEEN, "v1/attention/backends/flex_attention.py:96"),
    "ROCM_ATTN": (_SIXTEEN | _FP8, "v1/attention/backends/rocm_attn.py:143"),
    "TRITON_MLA": (_SIXTEEN | {"fp8", "fp8_e4m3"}, "v1/attention/backends/mla/triton_mla.py:101"),
    "CPU_ATTN": (_SIXTEEN | _FP8, "v1/attention/backends/cpu_attn.py:57"),
}
"""KV types that a backend lists; a backend that is not here is not judged."""

_CUDA_ONLY = frozenset({
    "FLASH_ATTN", "FLASHINFER", "FLASHMLA", "FLASH_ATTN_MLA", "FLASHINFER_MLA", "CUTLASS_MLA", "TOKENSPEED_MLA",
    "TRITON_FLASH_ATTN", "FLEX_ATTENTION",
})  # fmt: skip
_CPU = frozenset({"CPU_ATTN", "CPU_MLA"})


@dataclass(frozen=True, slots=True)
class Rule:
    """A check of vLLM's that Outrider makes first. `tells` says in a sentence what would go wrong, or None."""

    code: str
    source: str
    tells: Callable[[LaunchRequest], str | None]


def capability(request: LaunchRequest) -> int | None:
    """An NVIDIA GPU's compute capability as a number, 86 for sm_86; None for anything else and where it is unknown."""
    found = re.fullmatch(r"sm_(\d+)a?", request.arch or "")
    return int(found[1]) if request.backend is Backend.CUDA and found else None


def chosen(request: LaunchRequest) -> str | None:
    """The backend to name: what was asked for, else where vLLM's own choice would be wrong or is not fixed."""
    if request.backend is Backend.CPU:
        return None  # there is one (two with MLA), and a flag would be ignored
    if request.attention_backend is not None:
        return request.attention_backend
    if request.backend is Backend.ROCM:
        if request.mla:
            return "TRITON_MLA"  # AITER's faults with MTP (recipes#926)
        return "ROCM_ATTN" if request.method in NON_CAUSAL_METHODS else None
    if request.mla:
        return None
    if kv_name(request.kv) in _PER_TOKEN:
        return "TRITON_ATTN"
    found = capability(request)
    if found is None or not 80 <= found < 90:
        return None
    return "FLASHINFER" if kv_name(request.kv) in _FP8 else "FLASH_ATTN"


def drafts_with(request: LaunchRequest) -> str | None:
    """The backend that the drafter is known to get; None when it chooses for itself."""
    if request.backend is Backend.CPU:
        return "CPU_ATTN"
    if request.settings.draft_attention_backend is not None:
        return request.settings.draft_attention_backend
    return chosen(request)


def stored_as(kv: KvType, dtype: str) -> str:
    """The value of --kv-cache-dtype. A 16-bit cache must be of the model's own type (`config/vllm.py:1506`), and
    is said all the same, for a checkpoint can force fp8 otherwise (vllm#44879); float32 has no name but `auto`."""
    if kv in (KvType.F32, KvType.F16, KvType.BF16):
        return dtype if dtype in ("float16", "bfloat16") else "auto"
    return kv.value


def _kv_type(request: LaunchRequest) -> str | None:
    for kv in (request.kv, request.settings.draft_kv):
        if kv is not None and kv is not KvType.F32:
            found = unknown("the KV type", kv_name(kv), KV_TYPES, request.version)
            if found is not None:
                return found
    return None


def _elsewhere(request: LaunchRequest) -> str | None:
    for backend in (request.attention_backend, request.settings.draft_attention_backend):
        if backend is None:
            continue
        if request.backend is Backend.ROCM and (backend in _CUDA_ONLY or backend in _CPU):
            return f"{backend} cannot be chosen on ROCm; ROCM_ATTN and TRITON_ATTN can, TRITON_MLA for MLA"
        if request.backend is Backend.CUDA and (backend.startswith("ROCM_") or backend in _CPU):
            return f"{backend} cannot be chosen on CUDA; FLASH_ATTN, FLASHINFER and TRITON_ATTN can"
        if request.backend is Backend.CPU and backend not in _CPU:
            return f"{backend} cannot be chosen on a CPU, which has CPU_ATTN alone"
    return None


def _name(request: LaunchRequest) -> str | None:
    for backend in (request.attention_backend, request.settings.draft_attention_backend):
        if backend is not None:
            found = unknown("the attention backend", backend, ATTENTION_BACKENDS, request.version)
            if found is not None:
                return found
    return None


def _flash_fp8(request: LaunchRequest) -> str | None:
    found = capability(request)
    for kv, backend in _pairs(request):
        if backend != "FLASH_ATTN" or kv not in _FP8:
            continue
        if kv == "fp8_e5m2" or (found is not None and found != 90 and not 100 <= found < 110):
            return f"{kv} KV with FLASH_ATTN does not start on {request.arch}; what does: {AMPERE_PAIRS}"
    return None


def _triton_fp8(request: LaunchRequest) -> str | None:
    found = capability(request)
    for kv, backend in _pairs(request):
        if backend == "TRITON_ATTN" and kv in _FP8 and found is not None and found < 89:
            return f"{kv} KV with TRITON_ATTN does not start on {request.arch}; what does: {AMPERE_PAIRS}"
    return None


def _stored(request: LaunchRequest) -> str | None:
    for kv, backend in _pairs(request):
        known = STORES.get(backend or "")
        if known is not None and kv not in known[0]:
            text = f"{backend} has no KV type {kv}: it takes {', '.join(sorted(known[0] - {'auto'}))}"
            return f"{text}. On Ampere: {AMPERE_PAIRS}" if request.backend is Backend.CUDA else text
    return None


def _turing(request: LaunchRequest) -> str | None:
    found = capability(request)
    if found is not None and found < 80 and any(backend == "FLASH_ATTN" for _, backend in _pairs(request)):
        return f"FLASH_ATTN needs sm_80 or newer, this is {request.arch}"
    return None


def _non_causal(request: LaunchRequest) -> str | None:
    backend = drafts_with(request)
    if request.method not in NON_CAUSAL_METHODS or backend is None:
        return None
    word = NON_CAUSAL.get(backend)
    if word is not None and knows(word, request.version):
        return None
    use = "CPU_ATTN" if request.backend is Backend.CPU else "FLASH_ATTN"
    if request.backend is Backend.ROCM:
        use = "TRITON_MLA" if request.mla else "ROCM_ATTN"
    here = f" in vLLM {request.version or 'of an unknown version'}"
    when = "" if word is None else f"{here} (from {word.since} on it has)"
    if backend == use:
        return f"{request.method} needs non-causal attention, which {backend} lacks{when}"
    return f"{request.method} needs non-causal attention, which {backend} lacks{when}; {use} has it"


def _pairs(request: LaunchRequest) -> list[tuple[str, str | None]]:
    """(KV type, backend) of the target, and of the drafter where it has any of its own."""
    kv = kv_name(request.kv)
    pairs = [(kv, chosen(request))]
    own = request.settings
    if request.method is not Method.NONE and (own.draft_kv is not None or own.draft_attention_backend is not None):
        draft = kv if own.draft_kv is None else kv_name(own.draft_kv)
        pairs.append((draft, own.draft_attention_backend))
    return [("auto" if name == "f32" else name, backend) for name, backend in pairs]


def _on_cpu(request: LaunchRequest) -> str | None:
    kv = kv_name(request.kv)
    if request.backend is not Backend.CPU or (kv not in _PER_TOKEN and not (kv in _FP8 and request.mla)):
        return None
    return f"vLLM on a CPU has no KV type {kv}" + (" with MLA" if request.mla else "")


def _fp8_on_cpu(request: LaunchRequest) -> str | None:
    kv = kv_name(request.kv)
    if request.backend is Backend.CPU and kv in _FP8 and not at_least(request.version, "0.24.0"):
        return f"vLLM on a CPU knows {kv} KV from 0.24.0 on"
    return None


RULES: tuple[Rule, ...] = (
    Rule("kv_type", "config/cache.py:44", _kv_type),
    Rule("kv_type", "platforms/cpu.py:203", _on_cpu),
    Rule("kv_type", "v1/attention/backends/cpu_attn.py:57", _fp8_on_cpu),
    Rule("attention_backend", "platforms/rocm.py:531, platforms/cuda.py:84, platforms/cpu.py:170", _elsewhere),
    Rule("attention_backend", "v1/attention/backends/registry.py", _name),
    Rule("attention_backend", "v1/attention/backends/flash_attn.py:492", _flash_fp8),
    Rule("attention_backend", "v1/attention/backends/triton_attn.py:512", _triton_fp8),
    Rule("attention_backend", "v1/attention/backends (supported_kv_cache_dtypes)", _stored),
    Rule("attention_backend", "v1/attention/backends/flash_attn.py:459", _turing),
    Rule("attention_backend", "v1/attention/backends (supports_non_causal)", _non_causal),
)
"""In the order in which they are asked."""


def refused(request: LaunchRequest) -> Reason | None:
    """The first rule that speaks against a request."""
    for rule in RULES:
        text = rule.tells(request)
        if text is not None:
            return Reason(rule.code, text, f"{WHEEL} {rule.source}")
    return None
