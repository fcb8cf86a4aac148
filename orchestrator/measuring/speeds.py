"""How fast an engine decodes when one request runs alone: from its own counters, between two moments. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from orchestrator.measuring import llama_cpp, sglang, vllm
from orchestrator.measuring.learned import FASTEST
from orchestrator.models import Runtime
from orchestrator.runtimes import EngineCounters

LEAST = 16
"""Tokens of a stretch that is worth keeping."""
_RULES: Mapping[str, Callable[[Mapping[str, float], Mapping[str, float]], tuple[int, float] | None]] = {
    Runtime.LLAMA_CPP.value: llama_cpp.decoding,
    Runtime.VLLM.value: vllm.decoding,
    Runtime.SGLANG.value: sglang.decoding,
}
_WANTED = frozenset({
    llama_cpp.TOKENS, llama_cpp.SECONDS, llama_cpp.DECODES, llama_cpp.BUSY, vllm.TOKENS, vllm.REQUESTS, vllm.SECONDS,
    sglang.TOKENS, sglang.REQUESTS, sglang.SECONDS, sglang.FIRST,
})  # fmt: skip
SLACK_S = 2.0
"""Seconds that counters may lie behind: they are read at one moment and written at another."""
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
    """From one moment at which nothing ran to the next. `at` are monotonic seconds."""

    idle: Mapping[str, float] | None = None
    at: float = 0.0

    def read(
        self, runtime: str, found: Mapping[str, float], counters: EngineCounters, at: float
    ) -> tuple[int, float] | None:
        """Take a reading (`numbers`); tokens and seconds of decoding if one request alone ran since the last idle
        moment. What cannot be is None: more seconds than have passed, or more tokens than anybody decodes in them."""
        rule = _RULES.get(runtime)
        if rule is None or counters.running is None or counters.running or counters.waiting:
            return None
        before, since = self.idle, self.at
        self.idle, self.at = {name: value for name, value in found.items() if name in _WANTED}, at
        done = None if before is None else rule(before, self.idle)
        if done is None or done[0] < LEAST or done[1] > at - since + SLACK_S or done[0] > FASTEST * done[1]:
            return None
        return done
