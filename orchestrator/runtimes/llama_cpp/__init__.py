"""llama.cpp's `llama-server`: official images, and the embedded CPU engine, which takes the same flags.

`builds.py` knows which build has which option, `arguments.py` writes the command line, `refusals.py` says what
would not start or not draft, `failures.py` reads the log.

Sources: tools/server and common/arg.cpp of b9294 to b11434; runs of b10434, b11434 and the xllamacpp
wheel b11549 with tiny models of known acceptance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.kinds import Backend
from orchestrator.models import Runtime
from orchestrator.plan import Method, Reason
from orchestrator.runtimes.base import (
    Command,
    EngineCounters,
    FailureSignature,
    LaunchRequest,
    Probing,
    Progress,
    samples,
)
from orchestrator.runtimes.llama_cpp import arguments
from orchestrator.runtimes.llama_cpp.failures import FAILURES
from orchestrator.runtimes.llama_cpp.refusals import refusal
from orchestrator.runtimes.llama_cpp.scoring import SCORING
from orchestrator.runtimes.llama_cpp.slots import progress
from orchestrator.runtimes.scoring import Scoring

__all__ = ["LlamaCpp"]

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
    "--host", "--port", "-m", "--alias", "-c", "-np", "-t",
    "--device", "-ngl", "--fit", "--split-mode",
    "-fa", "-ctk", "-ctv", "-ub", "-b", "--cache-ram", "--no-cache-prompt", "--load-mode", "--no-mmap",
    "--metrics", "--slots", "--jinja", "--no-webui",
    "--spec-type", "-md", "--spec-draft-n-max", "--spec-draft-p-min", "--spec-draft-type-k", "--spec-draft-type-v",
    "--spec-ngram-simple-size-n", "--spec-ngram-simple-size-m",
    "--spec-ngram-mod-n-match", "--spec-ngram-mod-n-min", "--spec-ngram-mod-n-max",
})  # fmt: skip

PROBING = Probing("/slots")
"""/health says ok while /slots hangs and SIGTERM is ignored (llama.cpp #27388). The token counters of /metrics are
added up when a request ends (unsloth #9997, its server_metrics)."""


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
    scoring: Scoring = SCORING
    probing: Probing = PROBING

    def command(self, request: LaunchRequest) -> Command:
        """The model is named with -m, its public name with --alias; -c is the total over slots. Aliases
        are the gateway's: this server answers to any name, and with several it would call itself by a
        random one.
        """
        reason = refusal(request)
        if reason is not None:
            raise ValueError(reason.text)
        return Command(argv=tuple(arguments.argv(request)), env=arguments.env(request))

    def refuses(self, request: LaunchRequest) -> Reason | None:
        return refusal(request)

    def parse_metrics(self, text: str) -> EngineCounters:
        return EngineCounters(**samples(text, _METRICS))

    def speculates(self, evidence: object) -> bool | None:
        if not isinstance(evidence, Sequence) or isinstance(evidence, str):
            return None
        said = [slot.get("speculative") for slot in evidence if isinstance(slot, dict)]
        known = [value for value in said if isinstance(value, bool)]
        return any(known) if known else None

    def parse_progress(self, body: bytes) -> Progress:
        return progress(body)

    def prefilled(self, found: Mapping[str, float]) -> tuple[float, float] | None:
        tokens, seconds = found.get("llamacpp:prompt_tokens_total"), found.get("llamacpp:prompt_seconds_total")
        return None if tokens is None or seconds is None else (tokens, seconds)

    def load_prior_s(self, weights: int, backend: Backend, arch: str | None) -> float:
        """0.1-0.5 s for a tiny model in a container; then the disk, taken as 0.5 GB/s; a GPU's own start 3 s."""
        return (1.0 if backend is Backend.CPU else 3.0) + weights / 0.5e9
