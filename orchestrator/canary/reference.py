"""What the weights say: tokens, and how likely each was, as the engine said that made them without drafting. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.runtimes.scoring import ids, number

LEAST_MEAN = -4.0
"""Nats a token. Greedy tokens of a model that works are far above it (a tenth to one nat); a guess among the 150,000
of a vocabulary is at -12."""


@dataclass(frozen=True, slots=True)
class Passage:
    """The ids of a prompt, the greedy tokens after it, and the log-probability of each of these."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Nats a token: the calibration."""
        return sum(self.logprobs) / len(self.logprobs)

    def to_json(self) -> dict[str, Any]:
        return {
            "prompt": list(self.prompt),
            "tokens": list(self.tokens),
            "logprobs": [round(value, 5) for value in self.logprobs],
        }

    @classmethod
    def from_json(cls, data: object) -> Passage | None:
        """Read `to_json` back; None for what it never wrote."""
        if not isinstance(data, dict) or not isinstance(data.get("logprobs"), list):
            return None
        prompt, tokens = ids(data.get("prompt")), ids(data.get("tokens"))
        logprobs = [value for said in data["logprobs"] if (value := number(said)) is not None]
        if not prompt or not tokens or len(logprobs) != len(tokens):
            return None
        return cls(prompt, tokens, tuple(logprobs))


@dataclass(frozen=True, slots=True)
class Reference:
    """The passages of one set of weights by name ("0", "1", "2", and "long-N"); `made` says by what, and when."""

    passages: Mapping[str, Passage]
    made: Mapping[str, str]

    def with_passage(self, name: str, passage: Passage) -> Reference:
        return Reference({**self.passages, name: passage}, self.made)

    def to_text(self) -> str:
        return json.dumps({"passages": {n: p.to_json() for n, p in self.passages.items()}, "made": dict(self.made)})

    @classmethod
    def from_text(cls, text: str, needed: Sequence[str]) -> Reference | None:
        """Read `to_text` back; None for what it never wrote, or where one of the needed passages is missing."""
        try:
            data = json.loads(text)
            passages = {str(n): p for n, d in data["passages"].items() if (p := Passage.from_json(d)) is not None}
            made = {str(k): str(v) for k, v in data["made"].items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        return cls(passages, made) if all(name in passages for name in needed) else None


def implausible(passages: Sequence[Passage]) -> str | None:
    """Why this cannot be what any weights say; None when it can. What is garbage from the first day on must not become
    the measure of the days that follow."""
    worst = min(passages, key=lambda p: p.mean)
    if not math.isfinite(worst.mean) or worst.mean < LEAST_MEAN:
        return f"it gives its own likeliest tokens {worst.mean:.1f} nats each: it knows nothing"
    said = {token for p in passages for token in p.tokens}
    if len(said) == 1 and len(passages) > 1:
        return f"it says the same token ({said.pop()}) to everything"
    return None
