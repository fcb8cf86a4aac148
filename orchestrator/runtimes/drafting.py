"""What a runtime's command line says of drafting, and the words of an engine that lives and does not draft. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from orchestrator.runtimes.base import FailureSignature, signature


@dataclass(frozen=True, slots=True)
class Drafting:
    """`method` and `drafter` are the flags that name them (none: it is told otherwise). `silences` are said by an
    engine that goes on without drafting; `clamped` has the draft length that it took instead in its first group."""

    method: tuple[str, ...]
    drafter: tuple[str, ...] = ()
    silences: tuple[FailureSignature, ...] = ()
    clamped: re.Pattern[str] | None = None


LLAMA_CPP = Drafting(
    method=("--spec-type",),
    drafter=("-md", "--spec-draft-model", "--model-draft"),
    silences=(
        signature(
            r"target and draft vocabs are not compatible|draft model vocab type must match|"
            r"draft(er)? (model )?vocab.{0,40}(mismatch|must match|not compatible)",
            "vocabulary_differs",
            "the drafter's vocabulary is not the model's",
        ),
        signature(
            r"failed to process speculative batch|draft model is not eagle3",
            "drafter_of_another_kind",
            "the drafter is of another kind than the method says",
        ),
        signature(
            r"speculative decoding not supported by this context|failed to initialize speculative decoding context",
            "drafting_not_set_up",
            "the engine could not set drafting up for this model",
        ),
    ),
    clamped=re.compile(r"exceeds the trained block size \d+ -- clamping to (\d+)"),
)
"""common/speculative.cpp and tools/server/server-context.cpp of b11434, and the words of b11549."""
VLLM = Drafting(method=("--speculative-config",))
SGLANG = Drafting(method=("--speculative-algorithm",), drafter=("--speculative-draft-model-path",))

BY_RUNTIME = {"llama.cpp": LLAMA_CPP, "vllm": VLLM, "sglang": SGLANG}
