"""The runtimes Outrider can launch: an adapter each. Adding a runtime is adding a file and a line here."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.models import Runtime
from orchestrator.runtimes.base import (
    Command,
    EngineCounters,
    FailureSignature,
    LaunchRequest,
    RuntimeAdapter,
    diagnose,
    flags_of,
)
from orchestrator.runtimes.llama_cpp import LlamaCpp
from orchestrator.runtimes.sglang import Sglang
from orchestrator.runtimes.vllm import Vllm

__all__ = [
    "ADAPTERS",
    "Command",
    "EngineCounters",
    "FailureSignature",
    "LaunchRequest",
    "RuntimeAdapter",
    "adapter",
    "diagnose",
    "flags_of",
]

ADAPTERS: Mapping[Runtime, RuntimeAdapter] = {
    Runtime.LLAMA_CPP: LlamaCpp(),
    Runtime.VLLM: Vllm(),
    Runtime.SGLANG: Sglang(),
}


def adapter(runtime: Runtime | str) -> RuntimeAdapter:
    """The adapter of a runtime (or of the `runtime` field of a plan); raises KeyError when there is none."""
    return ADAPTERS[Runtime(runtime)]
