"""What the rest of Outrider knows of a runtime: one adapter each, and it is pure.

An adapter turns a `LaunchRequest` into argv and environment, reads the engine's metrics
and recognises its dying words. Flag, endpoint and metric names appear nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from orchestrator.kinds import Backend, KvType
from orchestrator.models import Ngram, Runtime
from orchestrator.plan import Method, Reason
from orchestrator.runtimes.scoring import Scoring
from orchestrator.settings import Settings


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """What an engine is to be, in Outrider's words. Paths are paths in the container.

    `names` are the public name, then the aliases. `draft_tokens` counts for every method but
    `none`. `kv_pool` (bytes) and `memory_share` (of the device's memory, for an engine that
    insists on one) are vLLM's; `schedule` is vLLM's table of draft lengths by running requests:
    (first, last, length). `port` is set only for a runtime without a socket.
    """

    model: str
    names: tuple[str, ...]
    method: Method = Method.NONE
    drafter: str | None = None
    draft_tokens: int = 0
    context: int = 4096
    parallel: int = 1
    backend: Backend = Backend.CPU
    arch: str | None = None
    threads: int | None = None
    ngram: Ngram = field(default_factory=Ngram)
    prefix: tuple[str, ...] = ()
    """Words before the runtime's own arguments, for images whose entrypoint is no server."""
    kv: KvType = KvType.F16
    attention_backend: str | None = None
    kv_pool: int | None = None
    memory_share: float | None = None
    state_bits: int = 32
    batch: int | None = None
    eager: bool = False
    mla: bool = False
    """The model has multi-head latent attention, which has backends of its own."""
    prefix_caching: bool = True
    prompt_cache: int | None = None
    """Bytes of system memory in which llama.cpp may keep states of past prompts."""
    schedule: tuple[tuple[int, int, int], ...] = ()
    port: str | None = None
    version: str | None = None
    """The image's, such as `0.33.0` or `b11434`; `0.26.0+` is that one or a newer. None is unknown: then only what
    every supported version knows is said."""
    tensor_parallel: int = 1
    """How many devices share the model."""
    draft_tensor_parallel: int | None = None
    """How many of them share the drafter: 1, or all. None leaves it to the engine."""
    hybrid: bool = False
    """The model has recurrent layers: keeping states of past prompts is said in words of its own."""
    trust_remote_code: bool = False
    settings: Settings = field(default_factory=Settings)
    """What known restrictions make of the launch; each is None where nothing was settled."""


OFFLINE: Mapping[str, str] = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
"""In every engine's environment: weights are fetched by the daemon, and an engine has no token to ask a hub with."""


@dataclass(frozen=True, slots=True)
class Command:
    """What the container runs: arguments after the image's entrypoint, and the environment.

    `caches` are (purpose, path in the container) of compile caches worth a named volume.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    caches: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class EngineCounters:
    """An engine's own counters. Requests now running and waiting; tokens and drafts since it
    started. None where the engine does not say (speculation counters appear with the first draft)."""

    running: int | None = None
    waiting: int | None = None
    generated: int | None = None
    prompt: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    drafts: int | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """An engine's own word of its work. `marks` differ whenever it did something; None where it says nothing of that.
    Requests running and waiting as in `EngineCounters`; `free` is whether a request would be begun at once."""

    marks: tuple[int, ...] | None
    running: int | None = None
    waiting: int | None = None
    free: bool | None = None


@dataclass(frozen=True, slots=True)
class Probing:
    """How a runtime is asked whether it works.

    `progress_path` answers in little time also while it works, `models_path` with the names of its models, without
    any work of the model: whoever only asks whether it can be reached asks that. No health path is asked of an engine
    that serves: whether it delivers, a token of ours on the clients' way says, whatever the runtime.
    """

    progress_path: str
    models_path: str = "/v1/models"


@dataclass(frozen=True, slots=True)
class FailureSignature:
    """A pattern in an engine's log, and what it means. `retryable`: starting again can help."""

    pattern: re.Pattern[str]
    code: str
    hint: str
    retryable: bool = False


def signature(pattern: str, code: str, hint: str, *, retryable: bool = False) -> FailureSignature:
    """One that is looked for whatever the case of its letters."""
    return FailureSignature(re.compile(pattern, re.IGNORECASE), code, hint, retryable)


class RuntimeAdapter(Protocol):
    """One runtime's knowledge."""

    @property
    def runtime(self) -> Runtime: ...
    @property
    def methods(self) -> frozenset[Method]:
        """What it can draft with."""

    @property
    def socket(self) -> bool:
        """Whether it serves a unix socket (at `orchestrator.plan.SOCKET`)."""

    @property
    def flags(self) -> frozenset[str]:
        """Every flag that `command` can emit: tests hold each against the engine's parser, a launch or its source."""

    @property
    def health_path(self) -> str: ...
    @property
    def loading_statuses(self) -> frozenset[int]:
        """Answers of the health path that mean: up, not ready yet."""

    @property
    def metrics_path(self) -> str: ...
    @property
    def evidence_path(self) -> str | None:
        """Where the engine says whether it really speculates, if anywhere."""

    @property
    def failures(self) -> tuple[FailureSignature, ...]:
        """Most telling first."""

    @property
    def scoring(self) -> Scoring:
        """How it is asked for its own next tokens."""

    @property
    def probing(self) -> Probing: ...
    def parse_progress(self, body: bytes) -> Progress:
        """The answer of `probing.progress_path`; one that cannot be read says nothing."""

    def prefilled(self, found: Mapping[str, float]) -> tuple[float, float] | None:
        """Prompt tokens that were computed since it started, and the seconds that they took; None: it does not say.
        `found` are all samples of its metrics, summed over labels."""

    def command(self, request: LaunchRequest) -> Command:
        """The arguments and environment; raises ValueError for a request it cannot carry out."""

    def refuses(self, request: LaunchRequest) -> Reason | None:
        """Why the engine would not start, or not draft, with this request; None when nothing is known."""

    def parse_metrics(self, text: str) -> EngineCounters: ...
    def speculates(self, evidence: object) -> bool | None:
        """Reads the decoded JSON of `evidence_path`; None when it does not say."""

    def load_prior_s(self, weights: int, backend: Backend, arch: str | None) -> float:
        """Seconds from start to ready that are usual; a prior until this host has measured its own."""


def diagnose(lines: Iterable[str], failures: tuple[FailureSignature, ...]) -> FailureSignature | None:
    """The most telling signature in a log: the order of `failures` ranks, not that of the lines."""
    best = len(failures)
    for line in lines:
        for rank, signature in enumerate(failures[:best]):
            if signature.pattern.search(line):
                best = rank
                break
    return failures[best] if best < len(failures) else None


_SAMPLE = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{[^}]*\})?\s+([-+0-9.eE]+)(?:\s|$)")
"""A sample line: name, labels, value. NaN and infinities are no counts and do not match."""


def samples(text: str, names: Mapping[str, str]) -> dict[str, int]:
    """Sum, over label sets, the samples of a Prometheus text whose names are wanted.

    `names` maps a metric's name to ours. Absent metrics are absent from the answer;
    lines that are no samples are skipped, for a scrape can be cut off.
    """
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        match = _SAMPLE.match(line)
        ours = names.get(match[1]) if match else None
        if match is None or ours is None:
            continue
        try:
            value = float(match[2])
        except ValueError:
            continue
        if abs(value) < 1e18:
            found[ours] = found.get(ours, 0.0) + value
    return {name: int(value) for name, value in found.items()}


def flags_of(argv: Iterable[str]) -> frozenset[str]:
    """The words of an argv that are flags (`--x`, `-x`), without their `=value`."""
    return frozenset(word.partition("=")[0] for word in argv if re.match(r"^--?[a-zA-Z]", word))
