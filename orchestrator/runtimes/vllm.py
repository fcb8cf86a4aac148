"""vLLM: CUDA, ROCm (gfx1151 and CDNA) and CPU flavours.

Which version knows which word is in `vllm_flags`, attention rules in `vllm_attention`, drafting in
`vllm_speculation`, dying words in `vllm_failures`. What a GPU needs besides is in the catalogue's restrictions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from orchestrator.kinds import Backend
from orchestrator.models import Runtime
from orchestrator.plan import KEY, SOCKET, Method, Reason
from orchestrator.runtimes import vllm_attention as attention
from orchestrator.runtimes import vllm_speculation as speculation
from orchestrator.runtimes.base import (
    OFFLINE,
    Command,
    EngineCounters,
    FailureSignature,
    LaunchRequest,
    Probing,
    Progress,
    samples,
)
from orchestrator.runtimes.scoring import Scoring
from orchestrator.runtimes.vllm_attention import WHEEL
from orchestrator.runtimes.vllm_failures import FAILURES
from orchestrator.runtimes.vllm_flags import ENVIRONMENT, FLAGS, MOE_BACKENDS, OLDEST, at_least, knows, too_old, unknown
from orchestrator.runtimes.vllm_scoring import SCORING

_METRICS = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:generation_tokens_total": "generated",
    "vllm:prompt_tokens_total": "prompt",
    "vllm:spec_decode_num_draft_tokens_total": "drafted",
    "vllm:spec_decode_num_accepted_tokens_total": "accepted",
    "vllm:spec_decode_num_drafts_total": "drafts",
}
"""The same names in every version from 0.20.0 to 0.33.0 (v1/metrics/loggers.py, v1/spec_decode/metrics.py)."""

_OFFLINE = {
    **OFFLINE,
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_HOST_IP": "127.0.0.1",  # else it looks its address up by probing an outside one
}
_CACHES = (("vllm", "/cache/vllm"), ("triton", "/cache/triton"), ("inductor", "/cache/inductor"))
_CACHE_ENV = {
    "VLLM_CACHE_ROOT": "/cache/vllm",
    "TRITON_CACHE_DIR": "/cache/triton",
    "TORCHINDUCTOR_CACHE_DIR": "/cache/inductor",
}
_GIB = 1 << 30
_CPU_POOL_FLAG = "0.32.0"
"""Since when a CPU's pool is what --kv-cache-memory-bytes says; before, only whole GiB by VLLM_CPU_KVCACHE_SPACE."""
_GRAPHS = {"piecewise": "PIECEWISE", "full": "FULL"}

PROBING = Probing("/metrics")
"""/health only says that the engine object has not erred (vllm #39863, #36451): what it works on is in its counters,
and whether it delivers is asked for with a token."""


@dataclass(frozen=True, slots=True)
class Vllm:
    """The adapter of vLLM."""

    runtime: Runtime = Runtime.VLLM
    methods: frozenset[Method] = frozenset(Method)
    socket: bool = True
    flags: frozenset[str] = frozenset(FLAGS)
    health_path: str = "/health"
    loading_statuses: frozenset[int] = frozenset()
    """None: the socket appears when the engine is up, and 503 means that it is dead."""
    metrics_path: str = "/metrics"
    evidence_path: str | None = None
    """Only the counters tell whether it drafts; they stand still while the schedule says 0."""
    failures: tuple[FailureSignature, ...] = FAILURES
    scoring: Scoring = SCORING
    probing: Probing = PROBING

    def command(self, request: LaunchRequest) -> Command:
        """`vllm serve`: the model is the positional argument. The key comes by environment."""
        refusal = self.refuses(request)
        if refusal is not None:
            raise ValueError(refusal.text)
        settled = _settled(request)
        argv = (*settled.prefix, settled.model, *_arguments(settled))
        return Command(argv=argv, env=_environment(settled), caches=_CACHES)

    def refuses(self, request: LaunchRequest) -> Reason | None:
        """One of vLLM's own checks that the request would fail, or a word that its version does not know."""
        if too_old(request.version):
            return Reason("version_unsupported", f"vLLM {request.version} is older than {OLDEST}, the oldest supported")
        settled = _settled(request)
        return (
            _refused_size(settled)
            or speculation.refused(settled, _dtype(settled))
            or attention.refused(settled)
            or _refused_settings(settled)
        )

    def parse_metrics(self, text: str) -> EngineCounters:
        return EngineCounters(**samples(text, _METRICS))

    def parse_progress(self, body: bytes) -> Progress:
        """Iterations and tokens. Its gauges may read 0 when it is wedged (vllm #46811), so they are no part of it."""
        said = self.parse_metrics(text := body.decode("utf-8", "replace"))
        steps = samples(text, {"vllm:iteration_tokens_total_count": "steps"}).get("steps")
        known = said.generated is not None or steps is not None
        marks = (steps or 0, said.generated or 0, said.prompt or 0) if known else None
        free = None if said.waiting is None else said.waiting == 0
        return Progress(marks, running=said.running, waiting=said.waiting, free=free)

    def prefilled(self, found: Mapping[str, float]) -> tuple[float, float] | None:
        tokens, seconds = found.get("vllm:prompt_tokens_total"), found.get("vllm:request_prefill_time_seconds_sum")
        if tokens is None or seconds is None:
            return None
        return max(0.0, tokens - found.get("vllm:prefix_cache_hits_total", 0.0)), seconds

    def speculates(self, evidence: object) -> bool | None:
        return None

    def load_prior_s(self, weights: int, backend: Backend, arch: str | None) -> float:
        """CUDA: a minute and the disk, taken as 0.5 GB/s. gfx1151: 8.5-9 min were seen for 27B AWQ on
        every start, warm caches included (6-7 of them autotuning). CPU: 24 s idle and 85 s under load were
        measured for a model of a megabyte (imports and compiled kernels, not weights)."""
        if backend is Backend.CPU:
            return 60.0 + weights / 0.5e9
        start = 540.0 if arch == "gfx1151" else 300.0 if backend is Backend.ROCM else 90.0
        return start + weights / 0.5e9


def _settled(request: LaunchRequest) -> LaunchRequest:
    """The request with what its settings say in place of what it says itself."""
    own = request.settings
    return replace(
        request,
        kv=request.kv if own.kv is None else own.kv,
        attention_backend=own.attention_backend or request.attention_backend,
        eager=request.eager if own.eager is None else own.eager,
        prefix_caching=request.prefix_caching if own.prefix_caching is None else own.prefix_caching,
        batch=own.batch or request.batch,
    )


def _dtype(request: LaunchRequest) -> str:
    """What is computed in. Always said: a drafter of another type crashes (vllm#40334)."""
    return request.settings.dtype or "bfloat16"


def _arguments(request: LaunchRequest) -> Iterator[str]:
    """All but the model."""
    dtype = _dtype(request)
    yield from ("--served-model-name", *request.names)
    if request.port is None:
        yield from ("--uds", SOCKET)
    else:
        yield from ("--host", "0.0.0.0", "--port", request.port)  # noqa: S104 - in the container
    if request.trust_remote_code:
        # the weights are a folder, fetched at the pinned commit: there is no revision to be said, and no hub to ask
        yield "--trust-remote-code"
    yield from ("--dtype", dtype)
    if request.tensor_parallel > 1:
        yield from ("--tensor-parallel-size", str(request.tensor_parallel))
    yield from ("--max-model-len", str(request.context), "--max-num-seqs", str(request.parallel))
    if request.batch is not None:
        yield from ("--max-num-batched-tokens", str(request.batch))
    yield from _memory(request, dtype)
    backend = attention.chosen(request)
    if backend is not None:
        yield from ("--attention-backend", backend)
    if request.settings.moe_backend is not None:
        yield from ("--moe-backend", request.settings.moe_backend)
    yield from _graphs(request)
    if request.method is not Method.NONE:
        said = speculation.config(request, dtype)
        yield from ("--speculative-config", json.dumps(said, separators=(",", ":")))


def _memory(request: LaunchRequest, dtype: str) -> Iterator[str]:
    """KV cache, recurrent state, what is kept of prompts, and whether the model sees images."""
    if request.kv_pool is not None and (request.backend is not Backend.CPU or _pool_by_flag(request)):
        yield from ("--kv-cache-memory-bytes", str(request.kv_pool))
    if request.memory_share is not None and request.backend is not Backend.CPU:
        yield from ("--gpu-memory-utilization", f"{request.memory_share:.2f}")
    yield from ("--kv-cache-dtype", attention.stored_as(request.kv, dtype))
    if request.state_bits == 16:
        yield from ("--mamba-ssm-cache-dtype", "float16")
    if not request.prefix_caching:
        yield "--no-enable-prefix-caching"
    elif request.hybrid:
        yield "--enable-prefix-caching"
        if knows(FLAGS["--mamba-cache-mode"], request.version):
            yield from ("--mamba-cache-mode", "align")
    if not request.settings.vision:
        yield "--language-model-only"


def _graphs(request: LaunchRequest) -> Iterator[str]:
    if request.eager:
        yield "--enforce-eager"
    elif request.settings.graphs is not None:
        said = {"cudagraph_mode": _GRAPHS[request.settings.graphs]}
        yield from ("--compilation-config", json.dumps(said, separators=(",", ":")))


def _pool_by_flag(request: LaunchRequest) -> bool:
    return at_least(request.version, _CPU_POOL_FLAG)


def _environment(request: LaunchRequest) -> dict[str, str]:
    env = {"VLLM_API_KEY": KEY, **_OFFLINE, **_CACHE_ENV}
    if request.backend is Backend.CPU:
        env["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # the container has its cores; others may want them as well
        env["OMP_NUM_THREADS"] = str(request.threads or 1)
        if request.eager:
            # what vLLM compiles even so, for log-probabilities, needs a C++ compiler: without one in the image the
            # first request for them ends the engine (0.32 on a CPU)
            env["TORCHDYNAMO_DISABLE"] = "1"
        if request.kv_pool is not None and not _pool_by_flag(request):
            env["VLLM_CPU_KVCACHE_SPACE"] = str(max(1, math.ceil(request.kv_pool / _GIB)))
    elif request.schedule:
        env["VLLM_USE_V2_MODEL_RUNNER"] = "1"  # the schedule collapses on the older one (vllm#49548)
    return env | dict(request.settings.env)


def _refused_size(request: LaunchRequest) -> Reason | None:
    if request.batch is not None and request.batch < request.parallel:
        text = f"{request.batch} batched tokens are fewer than {request.parallel} sequences"
        return Reason("batch_too_small", text, f"{WHEEL} config/scheduler.py:331")
    if request.tensor_parallel < 1:
        return Reason("tensor_parallel", "a model is on one device at least", f"{WHEEL} config/parallel.py")
    if request.tensor_parallel > 1 and request.backend is Backend.CPU:
        return Reason("tensor_parallel", "a CPU's engine is not split: nobody is known to have run that")
    return None


def _refused_settings(request: LaunchRequest) -> Reason | None:
    own, version = request.settings, request.version
    if own.moe_backend is not None:
        text = unknown("the MoE backend", own.moe_backend, MOE_BACKENDS, version)
        if text is not None:
            return Reason("moe_backend", text, f"{WHEEL} config/kernel.py:122")
    for name in own.env:
        if name.startswith("VLLM_"):
            text = unknown("the variable", name, ENVIRONMENT, version)
            if text is not None:
                return Reason("unknown_environment", text, f"{WHEEL} envs.py")
    if own.dtype == "float32" and request.backend is not Backend.CPU and attention.chosen(request) == "FLASH_ATTN":
        text = "FLASH_ATTN computes in 16 bits, float32 is asked for"
        return Reason("dtype", text, f"{WHEEL} v1/attention/backends/flash_attn.py:289")
    return None
