"""SGLang on CUDA: what to say to `sglang.launch_server`, how to ask it, and what it cannot do.

Flags are those of 0.5.12, 0.5.18 and 0.5.23, whose own parsers were asked about every command line that this
adapter makes; what only some of them know is said only to a version that is known to. Restrictions are read
off 0.5.23 (srt/arg_groups/speculative_hook.py, srt/layers/attention/attention_registry.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.catalogue.versions import in_range
from orchestrator.kinds import Backend, KvType
from orchestrator.models import Runtime
from orchestrator.plan import KEY, NEEDS_DRAFTER, PORT, Method, Reason
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
from orchestrator.runtimes.sglang_boot import BOOT, KEY_VARIABLE
from orchestrator.runtimes.sglang_failures import FAILURES
from orchestrator.runtimes.sglang_scoring import SCORING

_ALGORITHM = {
    Method.NGRAM: "NGRAM",
    Method.DRAFT: "STANDALONE",
    Method.EAGLE3: "EAGLE3",
    Method.MTP: "NEXTN",
    Method.DFLASH: "DFLASH",
    Method.DSPARK: "DSPARK",
}
_CHAIN = frozenset({Method.DRAFT, Method.EAGLE3, Method.MTP})
"""Methods that draft one token after the other, with a width of one."""

_SPLIT_GRAPHS = ">=0.5.18"
"""`--cuda-graph-{max-bs,backend}-{decode,prefill}`; in 0.5.23 the old `--cuda-graph-max-bs` is ambiguous, an error."""
_DSPARK = ">=0.5.18"
_DRAFT_KV = ">=0.5.18"
"""`--speculative-draft-kv-cache-dtype`. 0.5.12 has neither of them, what lies between was not looked at."""

_ATTENTION = {
    "FLASH_ATTN": "fa3",
    "FLASHINFER": "flashinfer",
    "TRITON_ATTN": "triton",
    "TRITON_MLA": "triton",
}
"""vLLM's names of attention backends, which our settings use, and SGLang's."""

_METRICS = {
    "sglang:num_running_reqs": "running",
    "sglang:num_queue_reqs": "waiting",
    "sglang:generation_tokens_total": "generated",
    "sglang:prompt_tokens_total": "prompt",
    "sglang:spec_verify_calls_total": "drafts",
}
"""It counts no drafted or accepted tokens: acceptance is a gauge (`sglang:spec_accept_length`), smoothed by itself."""

_FLAGS = frozenset({
    "-c", "--model-path", "--served-model-name", "--host", "--port", "--dtype", "--context-length",
    "--max-running-requests", "--max-total-tokens", "--mem-fraction-static", "--kv-cache-dtype",
    "--chunked-prefill-size", "--attention-backend", "--tp-size", "--trust-remote-code", "--disable-radix-cache",
    "--disable-cuda-graph", "--cuda-graph-backend-decode", "--cuda-graph-backend-prefill", "--cuda-graph-max-bs",
    "--cuda-graph-max-bs-decode", "--max-mamba-cache-size", "--mamba-ssm-dtype", "--moe-runner-backend",
    "--enable-metrics",
    "--speculative-algorithm", "--speculative-draft-model-path", "--speculative-num-steps",
    "--speculative-eagle-topk", "--speculative-num-draft-tokens", "--speculative-dflash-block-size",
    "--speculative-dspark-block-size", "--speculative-draft-attention-backend",
    "--speculative-draft-kv-cache-dtype", "--speculative-ngram-max-bfs-breadth",
})  # fmt: skip

STATES_SHARED = 5
"""Recurrent states a running request may hold while prefixes are cached: 3, and 2 for its tracking buffer
(0.5.23 srt/mem_cache/kv_cache_configurator.py); without prefix caching it is one."""

_ENVIRONMENT = {
    **OFFLINE,
    "SGLANG_CACHE_DIR": "/cache/sglang",
    "TRITON_CACHE_DIR": "/cache/sglang/triton",  # the last three follow the first only from some version on
    "TORCHINDUCTOR_CACHE_DIR": "/cache/sglang/inductor",
    "FLASHINFER_WORKSPACE_BASE": "/cache/sglang",
    "SGLANG_HOST_IP": "127.0.0.1",  # else it looks its address up by probing an outside one
}
_CACHES = (("sglang", "/cache/sglang"),)
_HOOK = "SGLang 0.5.23 srt/arg_groups/speculative_hook.py"

PROBING = Probing("/metrics")
"""While it serves it is asked for a token on the clients' way, as any other: its counters stand still while it works,
its scheduler never lets go of its core, and so nobody but the gateway would witness against it. /health generates too,
and proves less: any output of the scheduler is enough for it, and its 503 after 20 s (SGLANG_HEALTH_CHECK_TIMEOUT) is
a compiler's at first use as well. So it is asked while the engine starts, and not again."""


@dataclass(frozen=True, slots=True)
class Sglang:
    """The adapter of SGLang."""

    runtime: Runtime = Runtime.SGLANG
    methods: frozenset[Method] = frozenset(Method)
    socket: bool = False
    flags: frozenset[str] = _FLAGS
    health_path: str = "/health"
    """It generates a token, as /health_generate does (unless SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION is off)."""
    loading_statuses: frozenset[int] = frozenset({503})
    """Its port opens before the model has loaded; a scheduler that hangs is a 503 too, after 20 s."""
    metrics_path: str = "/metrics"
    evidence_path: str | None = "/get_server_info"
    """/server_info in newer versions, which still have this name."""
    failures: tuple[FailureSignature, ...] = FAILURES
    scoring: Scoring = SCORING
    probing: Probing = PROBING

    def command(self, request: LaunchRequest) -> Command:
        """The interpreter with `BOOT`, then the server's arguments; `prefix` is the interpreter, else `python3`.

        The pool is said in tokens, for what the plan promises and what drafting writes ahead; SGLang takes less
        where less is free, and says so. How many requests may run is always said: with speculation SGLang would
        silently make it 48.
        """
        refusal = self.refuses(request)
        if refusal is not None:
            raise ValueError(refusal.text)
        said = request.settings
        argv = [*(request.prefix or ("python3",)), "-c", BOOT, "--model-path", request.model]
        argv += ["--served-model-name", request.names[0], "--host", "0.0.0.0", "--port", request.port or PORT]  # noqa: S104 - in the container
        dtype = said.dtype or "bfloat16"
        argv += ["--dtype", dtype, "--context-length", str(request.context)]
        argv += ["--max-running-requests", str(request.parallel)]
        argv += ["--max-total-tokens", str(request.parallel * (request.context + _window(request)))]
        if request.memory_share is not None:
            argv += ["--mem-fraction-static", f"{request.memory_share:.2f}"]
        argv += ["--kv-cache-dtype", _kv_name(_kv(request), request.arch, dtype)]
        attention = _attention(request)
        if attention is not None:
            argv += ["--attention-backend", _ATTENTION[attention]]
        batch = said.batch or request.batch
        if batch is not None:
            argv += ["--chunked-prefill-size", str(batch)]
        if request.tensor_parallel > 1:
            argv += ["--tp-size", str(request.tensor_parallel)]
        if request.trust_remote_code:
            argv += ["--trust-remote-code"]
        if said.moe_backend is not None:
            argv += ["--moe-runner-backend", said.moe_backend]
        argv += [*_prefixes_and_states(request), *_graphs(request), "--enable-metrics", *_speculation(request)]
        return Command(argv=tuple(argv), env={KEY_VARIABLE: KEY, **_ENVIRONMENT, **said.env}, caches=_CACHES)

    def refuses(self, request: LaunchRequest) -> Reason | None:
        if request.backend is not Backend.CUDA:
            text = f"SGLang is planned for CUDA only, not for {request.arch or request.backend}"
            return Reason("backend", text, "its wheels are built for gfx942 and gfx950 (sglang#31137, #31143 are open)")
        if request.method in NEEDS_DRAFTER and request.drafter is None:
            return Reason("no_drafter", f"{request.method} needs a drafter", _HOOK)
        if request.method is not Method.NONE and request.draft_tokens < 1:
            return Reason("no_draft_tokens", "a draft of no tokens verifies nothing", _HOOK)
        if request.schedule:
            text = "SGLang has no table of draft lengths by running requests"
            return Reason("schedule", text, "SGLang 0.5.23 srt/speculative/adaptive_spec_params.py")
        return _refused_version(request) or _refused_kv(request)

    def parse_metrics(self, text: str) -> EngineCounters:
        return EngineCounters(**samples(text, _METRICS))

    def parse_progress(self, body: bytes) -> Progress:
        """Whether it runs something. Its token counters are written when a request ends, or every 40 steps, so that
        they stand still means nothing."""
        said = self.parse_metrics(body.decode("utf-8", "replace"))
        free = None if said.waiting is None else said.waiting == 0
        return Progress(None, running=said.running, waiting=said.waiting, free=free)

    def prefilled(self, found: Mapping[str, float]) -> tuple[float, float] | None:
        return None

    def speculates(self, evidence: object) -> bool | None:
        """From /get_server_info: what resolution made of the arguments, and whether a draft was accepted."""
        if not isinstance(evidence, Mapping) or "speculative_algorithm" not in evidence:
            return None
        return isinstance(evidence["speculative_algorithm"], str)

    def load_prior_s(self, weights: int, backend: Backend, arch: str | None) -> float:
        """A minute and a half for its processes and CUDA graphs, as vLLM's; then the disk, taken as 0.5 GB/s."""
        return 90.0 + weights / 0.5e9


def _window(request: LaunchRequest) -> int:
    """Tokens that one verification writes: the drafted ones, and the one that they follow."""
    return 0 if request.method is Method.NONE else request.draft_tokens + 1


def _kv(request: LaunchRequest) -> KvType:
    return request.settings.kv or request.kv


def _kv_name(kv: KvType, arch: str | None, dtype: str) -> str:
    """SGLang has no float16 cache of its own: the model's type is `auto`. Of FP8 Ampere computes e5m2 only."""
    match kv:
        case KvType.FP8_E4M3 | KvType.FP8_E5M2:
            return kv.value
        case KvType.FP8:
            return "fp8_e5m2" if _ampere(arch) else "fp8_e4m3"
        case _:
            return "bfloat16" if dtype == "bfloat16" else "auto"


def _ampere(arch: str | None) -> bool:
    return arch is not None and re.fullmatch(r"sm_8[0-8]", arch) is not None


def _attention(request: LaunchRequest) -> str | None:
    """vLLM's name of the backend that is asked for; where none is, SGLang's own choice is right for the GPU."""
    return request.settings.attention_backend or request.attention_backend


def _prefixes_and_states(request: LaunchRequest) -> list[str]:
    """Prefix caching, and for a hybrid the number and type of its recurrent states."""
    said = request.settings.prefix_caching
    caching = request.prefix_caching if said is None else said
    argv = [] if caching else ["--disable-radix-cache"]
    if request.hybrid:
        argv += ["--max-mamba-cache-size", str(request.parallel * (STATES_SHARED if caching else 1))]
    if request.state_bits == 16:
        argv += ["--mamba-ssm-dtype", "float16"]
    return argv


def _graphs(request: LaunchRequest) -> list[str]:
    """CUDA graphs for as many requests as may run, or none at all."""
    split = in_range(request.version, _SPLIT_GRAPHS)
    eager = request.eager if request.settings.eager is None else request.settings.eager
    if eager:
        if split:
            return ["--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled"]
        return ["--disable-cuda-graph"]  # deprecated in 0.5.23, and still known there
    if split:
        return ["--cuda-graph-max-bs-decode", str(request.parallel)]
    return [] if request.version is None else ["--cuda-graph-max-bs", str(request.parallel)]


def _speculation(request: LaunchRequest) -> list[str]:
    """DFlash counts the block that is verified, DSpark what is drafted, a chain both; a block is a draft and one."""
    if request.method is Method.NONE:
        return []
    argv = ["--speculative-algorithm", _ALGORITHM[request.method]]
    if request.method in NEEDS_DRAFTER and request.drafter is not None:
        argv += ["--speculative-draft-model-path", request.drafter]
    drafted, window = str(request.draft_tokens), str(_window(request))
    if request.method is Method.DFLASH:
        argv += ["--speculative-dflash-block-size", window]
    elif request.method is Method.DSPARK:
        argv += ["--speculative-dspark-block-size", drafted]
    elif request.method in _CHAIN:
        argv += ["--speculative-num-steps", drafted, "--speculative-eagle-topk", "1"]
        argv += ["--speculative-num-draft-tokens", window]
    else:  # a tree of 10 branches otherwise, which is an error with pages and most attention backends
        argv += ["--speculative-num-draft-tokens", window, "--speculative-ngram-max-bfs-breadth", "1"]
    if request.method is not Method.NGRAM:
        backend, kv = request.settings.draft_attention_backend, request.settings.draft_kv
        if backend is not None:
            argv += ["--speculative-draft-attention-backend", _ATTENTION[backend]]
        if kv is not None:
            argv += ["--speculative-draft-kv-cache-dtype", _kv_name(kv, request.arch, "bfloat16")]
    return argv


def _refused_version(request: LaunchRequest) -> Reason | None:
    """What the version is not known to know. An unknown version may be the oldest."""
    version = request.version or "an unknown version"
    if request.method is Method.DSPARK and not in_range(request.version, _DSPARK):
        text = f"SGLang of {version} is not known to have DSpark, 0.5.18 has"
        return Reason("version", text, "SGLang 0.5.12's and 0.5.18's own parsers")
    if (
        request.settings.draft_kv is not None
        and request.method not in (Method.NONE, Method.NGRAM)
        and not in_range(request.version, _DRAFT_KV)
    ):
        text = f"SGLang of {version} is not known to take a drafter's own KV type, 0.5.18 does"
        return Reason("version", text, "SGLang 0.5.12's and 0.5.18's own parsers")
    return None


def _refused_kv(request: LaunchRequest) -> Reason | None:
    """KV types and attention backends that SGLang, or the GPU under them, does not have."""
    for kv in (_kv(request), request.settings.draft_kv):
        if kv is not None and kv not in (KvType.F16, KvType.BF16, KvType.FP8, KvType.FP8_E4M3, KvType.FP8_E5M2):
            text = f"SGLang has no KV type {kv}; it has bfloat16, fp8_e4m3 and fp8_e5m2"
            return Reason("kv_type", text, "SGLang 0.5.23 srt/arg_groups/fields/model.py")
    kv_name = _kv_name(_kv(request), request.arch, request.settings.dtype or "bfloat16")
    for backend in (_attention(request), request.settings.draft_attention_backend):
        if backend is None:
            continue
        if backend not in _ATTENTION:
            text = f"SGLang has no attention backend {backend}; it has {', '.join(sorted(_ATTENTION))} by other names"
            return Reason("attention_backend", text, "SGLang 0.5.23 srt/arg_groups/choices.py")
        if _ATTENTION[backend] == "fa3":
            major = re.fullmatch(r"sm_(\d+)\d", request.arch or "")
            if major is not None and not (major[1] == "9" or (major[1] == "8" and not request.mla)):
                text = f"FlashAttention 3 does not run on {request.arch}" + (" with MLA" if request.mla else "")
                return Reason("attention_backend", text, "SGLang 0.5.23 srt/layers/attention/attention_registry.py")
            if kv_name == "fp8_e5m2":
                text = "with an fp8_e5m2 KV cache SGLang silently takes triton for FlashAttention 3"
                return Reason("attention_backend", text, "SGLang 0.5.23 srt/arg_groups/overrides.py")
    return None
