"""How fast an engine decodes when one request runs alone: from its own counters, between two moments. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from orchestrator.measuring import llama_cpp, sglang, vllm
from orchestrator.models import Runtime
from orchestrator.runtimes import EngineCounters

LEAST = 16
"""Tokens of a stretch that is worth keeping."""
_RULES: Mapping[str, Callable[[Mapping[str, float], Mapping[str, float]], tuple[int, float] | None]] = {
    Runtime.LLAMA_CPP.value: llama_cpp.decoding,
    Runtime.VLLM.value: vllm.decoding,
    Runtime.SGLANG.value: sglang.decoding,
}
_SAMPLE = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{[^}]*\})?\s+([-+0-9.eE]+)(?:\s|$)")


def numbers(text: str) -> dict[str, float]:
    """All samples of a Prometheus text, summed over labels; what is no number is left out."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match is None:
            continue
        try:
            value = float(match[2])
        except ValueError:
            continue
        if abs(value) < 1e18:
            found[match[1]] = found.get(match[1], 0.0) + value
    return found


@dataclass(slots=True)
class Window:
    """From one moment at which nothing ran to the next."""

    idle: Mapping[str, float] | None = None

    def read(self, runtime: str, text: str, counters: EngineCounters) -> tuple[int, float] | None:
        """Take a reading; tokens and seconds of decoding if one request alone ran since the last idle moment."""
        rule = _RULES.get(runtime)
        if rule is None or counters.running is None or counters.running or counters.waiting:
            return None
        before, self.idle = self.idle, numbers(text)
        done = None if before is None else rule(before, self.idle)
        return done if done is not None and done[0] >= LEAST else None
