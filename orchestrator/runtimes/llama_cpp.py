"""llama.cpp's `llama-server`: official images, and the embedded CPU engine, which takes the same flags.

Sources: tools/server and common/arg.cpp at 0c1e5709; runs of b10434, b11434 and the xllamacpp
wheel b11549 with tiny models of known acceptance.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.kinds import Backend, KvType
from orchestrator.models import Runtime
from orchestrator.plan import KEY, SOCKET, Method, Reason
from orchestrator.runtimes.base import OFFLINE, Command, EngineCounters, FailureSignature, LaunchRequest, samples

_SPEC_TYPE = {
    Method.DRAFT: "draft-simple",
    Method.EAGLE3: "draft-eagle3",
    Method.MTP: "draft-mtp",
    Method.DFLASH: "draft-dflash",
    Method.DSPARK: "draft-dspark",
}
_NEEDS_DRAFTER = frozenset({Method.DRAFT, Method.EAGLE3, Method.DFLASH, Method.DSPARK})

_METRICS = {
    "llamacpp:requests_processing": "running",
    "llamacpp:requests_deferred": "waiting",
    "llamacpp:tokens_predicted_total": "generated",
    "llamacpp:prompt_tokens_total": "prompt",
    "llamacpp:spec_decode_num_draft_tokens_total": "drafted",
    "llamacpp:spec_decode_num_accepted_tokens_total": "accepted",
    "llamacpp:spec_decode_num_drafts_total": "drafts",
}

_FLAGS = frozenset({
    "--host", "--port", "-m", "--alias", "-c", "-np", "-t", "-ngl", "-fa", "-ctk", "-ctv", "--cache-ram",
    "--metrics", "--slots", "--jinja", "--no-webui",
    "--spec-type", "-md", "--spec-draft-n-max",
    "--spec-ngram-simple-size-n", "--spec-ngram-simple-size-m",
    "--spec-ngram-mod-n-match", "--spec-ngram-mod-n-min", "--spec-ngram-mod-n-max",
})  # fmt: skip


def _signature(pattern: str, code: str, hint: str, *, retryable: bool = False) -> FailureSignature:
    return FailureSignature(re.compile(pattern, re.IGNORECASE), code, hint, retryable)


FAILURES = (
    _signature(
        r"doesn't contain MTP layers",
        "no_mtp_head",
        "the model has no MTP head: use another speculation method or none",
    ),
    _signature(
        r"get_sub_batch: failed to add token",
        "drafter_overrun",
        "too many slots for DFlash in this build: lower parallel to 2",
        retryable=True,
    ),
    _signature(
        r"failed to initialize speculative decoding context|draft(er)? (model )?vocab.{0,40}(mismatch|not compatible)|"
        r"speculative decoding not supported by this context",
        "speculation_off",
        "the drafter does not belong to this model: remove it, or use the drafter made for it",
    ),
    _signature(
        r"(CUDA|HIP|ROCm|Vulkan|ggml_vk)[^\n]{0,120}(out of (device )?memory|ErrorOutOfDeviceMemory)|"
        r"cudaMalloc failed|hipMalloc failed|unable to allocate \w+ buffer|"
        r"failed to allocate (buffer|compute|KV|memory)|std::bad_alloc|ggml_aligned_malloc: insufficient memory",
        "out_of_memory",
        "lower context or parallel, choose a smaller variant, or free memory on the device",
    ),
    _signature(
        r"tensor '[^']*' data is not within the file bounds|model is corrupted or incomplete",
        "model_truncated",
        "the model file is cut off: fetch it again",
    ),
    _signature(
        r"invalid magic|failed to read (magic|header)|gguf_init_from_file|error loading model|failed to load model|"
        r"failed to load draft model",
        "model_unreadable",
        "the model file is missing, damaged or of an unknown architecture: `outrider models` tells which",
    ),
    _signature(
        r"error: invalid argument|unrecognized arguments?|unknown (argument|speculative|value for --spec)|"
        r"error while handling argument|argument has been removed|invalid speculative",
        "bad_flag",
        "the image's version does not know a flag of the plan: pin another image version",
    ),
    _signature(
        r"couldn't bind|address already in use|failed to (bind|listen)|unable to bind",
        "address_in_use",
        "something holds the engine's socket or port: it is given another one at the next start",
        retryable=True,
    ),
    _signature(
        r"device lost|VK_ERROR_DEVICE_LOST|illegal memory access|hipErrorIllegalAddress|HSA_STATUS_ERROR",
        "device_fault",
        "the GPU faulted under the engine: start again, without speculation if it happens twice",
        retryable=True,
    ),
    _signature(
        r"Illegal instruction|SIGILL|needs a CPU with",  # the last is what the embedded engine says
        "cpu_unsupported",
        "this build needs CPU features that the host lacks: pin another image, or use another host",
    ),
    _signature(
        r"GGML_ASSERT|ggml_abort",
        "engine_assert",
        "the engine gave up in an assertion; with a drafter, its width is probably not the target's",
    ),
)
"""In order of how much they tell: an assertion or a failed load often follows its own cause."""


@dataclass(frozen=True, slots=True)
class LlamaCpp:
    """The adapter of llama.cpp."""

    runtime: Runtime = Runtime.LLAMA_CPP
    methods: frozenset[Method] = frozenset(Method)
    socket: bool = True
    flags: frozenset[str] = _FLAGS
    health_path: str = "/health"
    loading_statuses: frozenset[int] = frozenset({503})
    """503 {"error":{"message":"Loading model"}} while the port is already open."""
    metrics_path: str = "/metrics"
    evidence_path: str | None = "/slots"
    """/props says `none` even when DFlash is on; a slot's `speculative` is the truth."""
    failures: tuple[FailureSignature, ...] = FAILURES

    def command(self, request: LaunchRequest) -> Command:
        """The model is named with -m, its public name with --alias; -c is the total over slots. Aliases
        are the gateway's: this server answers to any name, and with several it would call itself by a
        random one.

        The key comes by environment (LLAMA_API_KEY), for argv is seen by every `ps`.
        """
        refusal = self.refuses(request)
        if refusal is not None:
            raise ValueError(refusal.text)
        where = ["--host", SOCKET] if request.port is None else ["--host", "0.0.0.0", "--port", request.port]  # noqa: S104 - in the container
        argv = [*request.prefix, "-m", request.model, "--alias", request.names[0], *where]
        argv += ["-c", str(request.context * request.parallel), "-np", str(request.parallel)]
        if request.threads is not None:
            argv += ["-t", str(request.threads)]
        if request.backend is not Backend.CPU:
            argv += ["-ngl", "999"]
        if request.kv is not KvType.F16:  # a quantised V cache needs flash attention, which is `auto` else
            argv += ["-ctk", request.kv.value, "-ctv", request.kv.value, "-fa", "on"]
        if request.prompt_cache is not None:
            argv += ["--cache-ram", str(request.prompt_cache >> 20)]
        argv += ["--metrics", "--slots", "--jinja", "--no-webui", *_speculation(request)]
        return Command(argv=tuple(argv), env={"LLAMA_API_KEY": KEY, **OFFLINE})

    def refuses(self, request: LaunchRequest) -> Reason | None:
        if request.method in _NEEDS_DRAFTER and request.drafter is None:
            text = f"{request.method} without a drafter would run healthy and draft nothing"
            return Reason("no_drafter", text, "llama.cpp b11434, tried")
        if request.method is not Method.NONE and request.draft_tokens < 1:
            return Reason(
                "no_draft_tokens", "a draft of no tokens still costs a drafter's memory", "CLUB compose notes"
            )
        if request.kv not in (KvType.F16, KvType.Q8_0, KvType.Q4_0):
            return Reason(
                "kv_type", f"llama.cpp has no KV type {request.kv}; it has f16, q8_0 and q4_0", "common/arg.cpp"
            )
        if any("," in name for name in request.names):
            return Reason("alias", "--alias separates names with commas", "common/arg.cpp")
        return None

    def parse_metrics(self, text: str) -> EngineCounters:
        return EngineCounters(**samples(text, _METRICS))

    def speculates(self, evidence: object) -> bool | None:
        if not isinstance(evidence, Sequence) or isinstance(evidence, str):
            return None
        said = [slot.get("speculative") for slot in evidence if isinstance(slot, dict)]
        known = [value for value in said if isinstance(value, bool)]
        return any(known) if known else None

    def load_prior_s(self, weights: int, backend: Backend, arch: str | None) -> float:
        """0.1-0.5 s for a tiny model in a container; then the disk, taken as 0.5 GB/s; a GPU's own start 3 s."""
        return (1.0 if backend is Backend.CPU else 3.0) + weights / 0.5e9


def _speculation(request: LaunchRequest) -> list[str]:
    """Left out altogether for `none`: `--spec-draft-n-max 0` would still allocate the drafter."""
    if request.method is Method.NONE:
        return []
    if request.method is Method.NGRAM:
        ngram = request.ngram
        if ngram.kind == "simple":
            sizes = ["--spec-ngram-simple-size-n", str(ngram.match), "--spec-ngram-simple-size-m", str(ngram.longest)]
            return ["--spec-type", "ngram-simple", *sizes]
        least = str(min(48, ngram.longest))
        bounds = ["--spec-ngram-mod-n-min", least, "--spec-ngram-mod-n-max", str(ngram.longest)]
        return ["--spec-type", "ngram-mod", "--spec-ngram-mod-n-match", str(ngram.match), *bounds]
    argv = ["--spec-type", _SPEC_TYPE[request.method]]
    if request.drafter is not None:
        argv += ["-md", request.drafter]
    return [*argv, "--spec-draft-n-max", str(request.draft_tokens)]
