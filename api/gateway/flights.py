"""What the requests in flight at each engine wait for, as the daemon is told: the first witness of an engine's life.

Gathered when a report is made, so that requests pay nothing for it. Requests whose client takes nothing now are
counted apart: that nothing comes for them is not the engine's doing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_LONGEST = re.compile(rb'"max_(?:completion_|output_)?tokens"\s*:\s*(\d{1,9})\b')
_SEARCHED = 4096
"""Bytes at each end of a body in which the length of the answer is looked for: the rest is the prompt."""


def answer_tokens(body: bytes) -> int | None:
    """The longest that the answer may be, in tokens; None where the request does not say."""
    parts = (body,) if len(body) <= 2 * _SEARCHED else (body[:_SEARCHED], body[-_SEARCHED:])
    return max((int(n) for part in parts for n in _LONGEST.findall(part)), default=None)


@dataclass(frozen=True, slots=True)
class Flight:
    """One request at an engine. `sent` is monotonic; `answer` the tokens of an answer that comes in one piece."""

    engine: str
    sent: float
    flowed: bool
    paused: bool
    streamed: bool
    prompt_bytes: int
    answer: int | None


@dataclass(slots=True)
class _Sum:
    flowing: int = 0
    awaiting: int = 0
    answers: int = 0
    paused: int = 0
    oldest_s: float | None = None
    prompt_bytes: int = 0
    longest_prompt_bytes: int = 0
    answer_tokens: int = 0
    answer_unbounded: bool = False

    def add(self, flight: Flight, now: float) -> None:
        if flight.paused:
            self.paused += 1
            return
        self.oldest_s = max(self.oldest_s or 0.0, round(now - flight.sent, 3))
        if flight.flowed:
            self.flowing += 1
            return
        self.prompt_bytes += flight.prompt_bytes
        self.longest_prompt_bytes = max(self.longest_prompt_bytes, flight.prompt_bytes)
        if flight.streamed:
            self.awaiting += 1
            return
        self.answers += 1
        self.answer_unbounded |= flight.answer is None
        self.answer_tokens = max(self.answer_tokens, flight.answer or 0)

    def document(self) -> dict[str, object]:
        return {
            "flowing": self.flowing,
            "awaiting": self.awaiting,
            "answers": self.answers,
            "paused": self.paused,
            "oldest_s": self.oldest_s,
            "prompt_bytes": self.prompt_bytes,
            "longest_prompt_bytes": self.longest_prompt_bytes,
            "answer_tokens": None if self.answer_unbounded else self.answer_tokens,
        }


def gathered(flights: Iterable[Flight], now: float) -> dict[str, dict[str, object]]:
    """By engine. Those without a request in flight are absent."""
    found: dict[str, _Sum] = {}
    for flight in flights:
        found.setdefault(flight.engine, _Sum()).add(flight, now)
    return {engine: one.document() for engine, one in found.items()}
