"""vLLM: CUDA and ROCm (gfx1151) flavours.

Flags, `--speculative-config` keys and attention rules are those of vLLM 0.33.0 (config/speculative.py,
v1/attention, platforms/*.py); unknown keys of that JSON are a hard error there, so none is written that
0.33 does not know. Settings for gfx1151 are hec-ovi/vllm-awq4-qwen @da472c70's, found one crash at a time.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from orchestrator.kinds import Backend, KvType
from orchestrator.models import Runtime
from orchestrator.plan import KEY, SOCKET, Method, Reason
from orchestrator.runtimes.base import OFFLINE, Command, EngineCounters, FailureSignature, LaunchRequest, samples

_METHOD = {
    Method.NGRAM: "ngram",
    Method.DRAFT: "draft_model",
    Method.EAGLE3: "eagle3",
    Method.MTP: "mtp",
    Method.DFLASH: "dflash",
    Method.DSPARK: "dspark",
}
_NEEDS_DRAFTER = frozenset({Method.DRAFT, Method.EAGLE3, Method.DFLASH, Method.DSPARK})
_NON_CAUSAL = frozenset({Method.DFLASH, Method.DSPARK})
_NGRAM_LEAST = 8
"""Shorter n-gram matches corrupt tool calls (vllm#40875)."""

_ROCM_NON_CAUSAL = ("ROCM_ATTN", "TRITON_ATTN", "ROCM_AITER_FA", "ROCM_SEGMENTED_ATTN", "TRITON_MLA")
_AMPERE_PAIRS = "bfloat16 with FLASH_ATTN, fp8 with FLASHINFER, int8_per_token_head with TRITON_ATTN"
_ATTENTION = "vLLM 0.33.0 v1/attention/backends/flash_attn.py, triton_attn.py"

_METRICS = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:generation_tokens_total": "generated",
    "vllm:prompt_tokens_total": "prompt",
    "vllm:spec_decode_num_draft_tokens_total": "drafted",
    "vllm:spec_decode_num_accepted_tokens_total": "accepted",
    "vllm:spec_decode_num_drafts_total": "drafts",
}

_FLAGS = frozenset({
    "--uds", "--host", "--port", "--served-model-name", "--dtype", "--max-model-len", "--max-num-seqs",
    "--max-num-batched-tokens", "--kv-cache-memory-bytes", "--kv-cache-dtype", "--gpu-memory-utilization",
    "--attention-backend", "--mamba-ssm-cache-dtype", "--no-enable-prefix-caching", "--language-model-only",
    "--enforce-eager", "--speculative-config",
})  # fmt: skip

_OFFLINE = {
    **OFFLINE,
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_HOST_IP": "127.0.0.1",  # else it looks its address up by probing an outside one
}
_CACHES = (("vllm", "/cache/vllm"), ("triton", "/cache/triton"), ("inductor", "/cache/inductor"))
_CACHE_ENV = {
    "VLLM_CACHE_ROOT": "/cache/vllm",
    "TRITON_CACHE_DIR": "/cache/triton",
    "TORCHINDUCTOR_CACHE_DIR": "/cache/inductor",
}
_GFX1151 = {
    "VLLM_ROCM_USE_AITER": "0",  # "GPU archs gfx1151 invalid" else (kyuz0-vllm#73)
    "VLLM_USE_TRITON_AWQ": "1",
    "VLLM_DISABLE_COMPILE_CACHE": "1",
    "HSA_NO_SCRATCH_RECLAIM": "1",  # segfault in scratch reclaim (vllm#37472)
    "MIOPEN_FIND_MODE": "FAST",  # the search hangs (vllm#36598)
}


def _signature(pattern: str, code: str, hint: str, *, retryable: bool = False) -> FailureSignature:
    return FailureSignature(re.compile(pattern, re.IGNORECASE), code, hint, retryable)


_LESS = "lower context or parallel, choose a smaller variant, or drop the drafter"
FAILURES = (
    _signature(r"No available memory for the cache blocks", "no_kv_memory", _LESS),
    _signature(
        r"KV cache is needed, which is larger than the available|"
        r"larger than the maximum number of tokens that can be stored in KV cache",
        "kv_too_small",
        "lower context or parallel: the pool does not hold one request of full length",
    ),
    _signature(
        r"Free memory on device.{0,120}is less than desired",
        "device_occupied",
        "something else holds memory on this device: stop it, or lower what this model takes",
        retryable=True,
    ),
    _signature(
        r"(CUDA|HIP|torch)[^\n]{0,60}out of memory|OutOfMemoryError|cudaErrorMemoryAllocation",
        "out_of_memory",
        _LESS,
    ),
    _signature(
        r"illegal memory access|cudaErrorIllegalAddress|hipErrorIllegalAddress|device-side assert|Memory access fault",
        "device_fault",
        "the GPU faulted under the engine: start again, without speculation if it happens twice",
        retryable=True,
    ),
    _signature(
        r"Unsupported speculative method|speculative_config.{0,200}(extra_forbidden|Extra inputs are not permitted|"
        r"validation error)|num_speculative_tokens.{0,80}(must|required)",
        "bad_speculation",
        "this version of vLLM does not take the plan's speculation: another method, or another image version",
    ),
    _signature(
        r"No valid attention backend|Selected backend .{0,80} is not valid|not supported by .{0,60}attention|"
        r"fp8.{0,80}(bfloat16|not supported)",
        "attention_backend",
        f"this KV type and attention backend do not go together; on Ampere: {_AMPERE_PAIRS}",
    ),
    _signature(
        r"GPU archs? \S+ invalid|no kernel image is available|not supported on this (GPU|platform)",
        "gpu_unsupported",
        "the image was not built for this GPU: choose the image of its family",
    ),
    _signature(
        r"driver.{0,60}(too old|insufficient)|CUDA driver version is insufficient",
        "driver_too_old",
        "update the GPU's driver, or take an older image",
    ),
    _signature(
        r"unrecognized arguments|error: argument |invalid choice:|no such option",
        "bad_flag",
        "the image's version does not know a flag of the plan: pin another image version",
    ),
    _signature(
        r"Model architectures? .{0,120}(not supported|failed to be inspected)",
        "model_unsupported",
        "this version of vLLM does not know the model's architecture: a newer image, or another runtime",
    ),
    _signature(
        r"SafetensorError|HeaderTooLarge|MetadataIncompleteBuffer|Error while deserializing header",
        "model_truncated",
        "a weights file is cut off or damaged: fetch it again",
    ),
    _signature(
        r"does not appear to have a file named|Cannot find any model weights|Invalid repository ID or local directory|"
        r"LocalEntryNotFoundError|OfflineModeIsEnabled",
        "model_unreadable",
        "the model's folder is incomplete, the engine's log names the file: fetch the model again",
    ),
    _signature(
        r"address already in use|could not bind",
        "address_in_use",
        "something holds the engine's socket or port: it is given another one at the next start",
        retryable=True,
    ),
    _signature(
        r"EngineDeadError|Engine core initialization failed|EngineCore.{0,60}(died|failed)",
        "engine_died",
        "the engine's core ended; the lines above it say why",
        retryable=True,
    ),
)
"""In order of how much they tell; the core's death is reported after its cause. A fallback from
AWQMoeMarlin to WNA16 is only a warning (kyuz0-vllm#72) and matches none."""


@dataclass(frozen=True, slots=True)
class Vllm:
    """The adapter of vLLM."""

    runtime: Runtime = Runtime.VLLM
    methods: frozenset[Method] = frozenset(Method)
    socket: bool = True
    flags: frozenset[str] = _FLAGS
    health_path: str = "/health"
    loading_statuses: frozenset[int] = frozenset()
    """None: the socket appears when the engine is up, and 503 means that it is dead."""
    metrics_path: str = "/metrics"
    evidence_path: str | None = None
    """Only the counters tell whether it drafts; they stand still while the schedule says 0."""
    failures: tuple[FailureSignature, ...] = FAILURES

    def command(self, request: LaunchRequest) -> Command:
        """`vllm serve`: the model is the positional argument. The key comes by environment."""
        refusal = self.refuses(request)
        if refusal is not None:
            raise ValueError(refusal.text)
        where = ["--uds", SOCKET] if request.port is None else ["--host", "0.0.0.0", "--port", request.port]  # noqa: S104 - in the container
        argv = [*request.prefix, request.model, "--served-model-name", *request.names, *where]
        argv += ["--dtype", "bfloat16"]  # a drafter of another dtype crashes (vllm#40334)
        argv += ["--max-model-len", str(request.context), "--max-num-seqs", str(request.parallel)]
        if request.batch is not None:
            argv += ["--max-num-batched-tokens", str(request.batch)]
        if request.kv_pool is not None:
            argv += ["--kv-cache-memory-bytes", str(request.kv_pool)]
        if request.memory_share is not None:
            argv += ["--gpu-memory-utilization", f"{request.memory_share:.2f}"]
        argv += ["--kv-cache-dtype", _kv_name(request.kv)]  # explicit: a checkpoint can force fp8 (vllm#44879)
        attention = _attention(request)
        if attention is not None:
            argv += ["--attention-backend", attention]
        if request.state_bits == 16:
            argv += ["--mamba-ssm-cache-dtype", "float16"]
        if not request.prefix_caching:
            argv += ["--no-enable-prefix-caching"]
        argv += ["--language-model-only"]
        if request.eager:
            argv += ["--enforce-eager"]
        if request.method is not Method.NONE:
            argv += ["--speculative-config", json.dumps(_speculation(request), separators=(",", ":"))]
        return Command(argv=tuple(argv), env=_environment(request), caches=_CACHES)

    def refuses(self, request: LaunchRequest) -> Reason | None:
        if request.method in _NEEDS_DRAFTER and request.drafter is None:
            return Reason("no_drafter", f"{request.method} needs a drafter", "vLLM 0.33.0 config/speculative.py")
        if request.method is not Method.NONE and request.draft_tokens < 1:
            text = "num_speculative_tokens must be above 0"
            return Reason("no_draft_tokens", text, "vLLM 0.33.0 config/speculative.py")
        if request.batch is not None and request.batch <= request.draft_tokens + 1:
            text = f"{request.batch} batched tokens do not hold one verification of {request.draft_tokens + 1}"
            return Reason("batch_too_small", text, "vLLM 0.33.0: max_num_batched_tokens must exceed the lookahead")
        return _refused_attention(request)

    def parse_metrics(self, text: str) -> EngineCounters:
        return EngineCounters(**samples(text, _METRICS))

    def speculates(self, evidence: object) -> bool | None:
        return None

    def load_prior_s(self, weights: int, backend: Backend, arch: str | None) -> float:
        """CUDA: a minute and the disk, taken as 0.5 GB/s. gfx1151: 8.5-9 min were seen for 27B AWQ on
        every start, warm caches included (6-7 of them autotuning)."""
        start = 540.0 if arch == "gfx1151" else 300.0 if backend is Backend.ROCM else 90.0
        return start + weights / 0.5e9


def _kv_name(kv: KvType) -> str:
    return "bfloat16" if kv in (KvType.F16, KvType.BF16) else kv.value


def _ampere(request: LaunchRequest) -> bool:
    return request.backend is Backend.CUDA and re.fullmatch(r"sm_8\d", request.arch or "") is not None


def _attention(request: LaunchRequest) -> str | None:
    """The backend to name: what was asked for, else where vLLM's own choice would be wrong or is not fixed."""
    if request.attention_backend is not None:
        return request.attention_backend
    if request.backend is Backend.ROCM:
        if request.mla:
            return "TRITON_MLA"  # AITER's faults with MTP (recipes#926)
        return "ROCM_ATTN" if request.method in _NON_CAUSAL else None
    if request.mla or not _ampere(request):
        return None
    match request.kv:
        case KvType.FP8:
            return "FLASHINFER"
        case KvType.INT8:
            return "TRITON_ATTN"
        case _:
            return "FLASH_ATTN"


def _refused_attention(request: LaunchRequest) -> Reason | None:
    """Start-up errors that a look at GPU, KV type and backend foretells."""
    backend, kv = _attention(request), _kv_name(request.kv)
    if request.kv in (KvType.Q8_0, KvType.Q4_0):
        return Reason("kv_type", f"vLLM has no KV type {kv}", "vLLM 0.33.0 config/cache.py")
    if request.backend is Backend.ROCM:
        if backend in ("FLASH_ATTN", "FLASHINFER"):
            text = f"{backend} cannot be chosen on ROCm; ROCM_ATTN and TRITON_ATTN can, TRITON_MLA for MLA"
            return Reason("attention_backend", text, "vLLM 0.33.0 platforms/rocm.py")
        if request.method in _NON_CAUSAL and backend is not None and backend not in _ROCM_NON_CAUSAL:
            text = f"{request.method} needs non-causal attention, which {backend} lacks; ROCM_ATTN has it"
            return Reason("attention_backend", text, "vLLM 0.33.0 v1/attention")
        return None
    if not _ampere(request) or backend is None:
        return None
    wrong = (
        (request.kv is KvType.FP8 and backend == "FLASH_ATTN")
        or (request.kv is KvType.FP8 and backend == "TRITON_ATTN" and request.arch != "sm_89")
        or (request.kv is KvType.INT8 and backend != "TRITON_ATTN")
    )
    if wrong:
        text = f"{kv} KV with {backend} does not start on {request.arch}; what does: {_AMPERE_PAIRS}"
        return Reason("attention_backend", text, _ATTENTION)
    return None


def _speculation(request: LaunchRequest) -> dict[str, Any]:
    """The JSON of --speculative-config. `method` is always said: vLLM would guess it from path names."""
    config: dict[str, Any] = {"method": _METHOD[request.method]}
    if request.drafter is not None and request.method in _NEEDS_DRAFTER:
        config["model"] = request.drafter
    config["num_speculative_tokens"] = request.draft_tokens
    if request.method is Method.NGRAM:
        config["prompt_lookup_max"] = max(request.ngram.match, _NGRAM_LEAST)
        config["prompt_lookup_min"] = _NGRAM_LEAST
    if request.schedule:
        config["num_speculative_tokens_per_batch_size"] = [list(tier) for tier in request.schedule]
    return config


def _environment(request: LaunchRequest) -> dict[str, str]:
    env = {"VLLM_API_KEY": KEY, **_OFFLINE, **_CACHE_ENV}
    if request.schedule:
        env["VLLM_USE_V2_MODEL_RUNNER"] = "1"  # the schedule collapses on the older one (vllm#49548)
    if request.arch == "gfx1151":
        env |= _GFX1151
    return env
