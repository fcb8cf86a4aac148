"""What llama.cpp would not start with, or would start with and not do what was planned. Pure."""

from __future__ import annotations

from orchestrator.kinds import Backend, KvType
from orchestrator.plan import NEEDS_DRAFTER, Method, Reason
from orchestrator.runtimes.base import LaunchRequest
from orchestrator.runtimes.llama_cpp.arguments import KV_TYPES, QUANTISED, SPEC_TYPE
from orchestrator.runtimes.llama_cpp.builds import build_of, knows, oldest

_CUDA_KV = frozenset({KvType.F32, KvType.F16, KvType.BF16, KvType.Q8_0, KvType.Q4_0})
_CUDA_KV_LATER = frozenset({KvType.Q4_1, KvType.Q5_0, KvType.Q5_1})
_CUDA_KV_BUILD = 11434
"""The first build read whose flash attention takes those later ones; b10793 compiles them on request only."""


def refusal(request: LaunchRequest) -> Reason | None:
    """Why not; None when nothing is known against it."""
    build = build_of(request.version)
    if build is not None and build < oldest():
        text = f"b{build} is older than b{oldest()}, the oldest build whose options are known"
        return Reason("version_unsupported", text, "common/arg.cpp")
    return _method(request, build) or _cache(request, build) or _name(request)


def _method(request: LaunchRequest, build: int | None) -> Reason | None:
    method = request.method
    if method in NEEDS_DRAFTER and request.drafter is None:
        text = f"{method} without a drafter would run healthy and draft nothing"
        return Reason("no_drafter", text, "llama.cpp b11434, tried")
    if method is not Method.NONE and request.draft_tokens < 1:
        return Reason("no_draft_tokens", "a draft of no tokens still costs a drafter's memory", "CLUB compose notes")
    kind = SPEC_TYPE.get(method)
    if kind is not None and not knows(build, "--spec-type", kind):
        return Reason("method_unknown", f"b{build} has no --spec-type {kind}", "common/speculative.cpp")
    return None


def _cache(request: LaunchRequest, build: int | None) -> Reason | None:
    for what, kv in (("KV", request.kv), ("draft KV", request.settings.draft_kv)):
        if kv is None:
            continue
        if kv not in KV_TYPES:
            text = f"llama.cpp has no {what} type {kv}; it has {', '.join(KV_TYPES)}"
            return Reason("kv_type", text, "common/arg.cpp kv_cache_types")
        if request.backend in (Backend.CUDA, Backend.ROCM) and not _has_kernels(kv, build):
            text = f"this build has no flash attention for {what} type {kv} on {request.backend}: use q8_0 or q4_0"
            return Reason("kv_type", text, "ggml-cuda/fattn.cu ggml_cuda_fattn_kv_type_supported, b10793 and b11434")
        if kv in QUANTISED and request.settings.flash_attention is False:
            text = f"{what} type {kv} needs flash attention, which is off"
            return Reason("kv_type", text, "src/llama-context.cpp:3845 of b11434")
    return None


def _has_kernels(kv: KvType, build: int | None) -> bool:
    if kv in _CUDA_KV:
        return True
    return kv in _CUDA_KV_LATER and build is not None and build >= _CUDA_KV_BUILD


def _name(request: LaunchRequest) -> Reason | None:
    if any("," in name for name in request.names):
        return Reason("alias", "--alias separates names with commas", "common/arg.cpp")
    return None
