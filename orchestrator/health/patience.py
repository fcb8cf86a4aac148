"""How long an engine that works may be silent. Pure.

`T_stall = max(60 s, 3 x what its prompts take at the measured rate)`. Prompts wait for each other, so all that have
no first byte yet count; and a long prompt is slower than the same tokens in short ones, for attention looks back
over all of it.
"""

from __future__ import annotations

from dataclasses import dataclass

FACTOR = 3.0
SLOWER_AT = 16_384
"""Tokens at which a prompt is taken to be half as fast as a short one. Ours, to the safe side: dense models of 7-30 B
lose less than that by then on the machines whose curves are known."""
BYTES_PER_TOKEN = 3.0
"""Until it was learned: English is 4, code and other scripts less."""
PREFILL_PRIOR = {"cpu": 20.0, "gpu": 200.0}
DECODE_PRIOR = {"cpu": 0.5, "gpu": 4.0}
"""Tokens a second until they were measured: what slow machines were seen to do (27 B on a CPU; 0.28 tokens/s, not
hung, in unsloth #8945, was a machine that swapped)."""


LEAST_TOKENS = 64
"""Prompt tokens that make a rate: the first few of an engine are slow, which is to the safe side."""
SLOWEST = 1.0
"""Prompt tokens a second: below that no engine is of use, and its counters are wrong, which would make it immune."""


def measured(prefilled: tuple[float, float] | None) -> float | None:
    """Prompt tokens a second, of tokens and the seconds that they took; None where that is too little to go by."""
    if prefilled is None or prefilled[0] < LEAST_TOKENS or prefilled[1] <= 0:
        return None
    return max(SLOWEST, prefilled[0] / prefilled[1])


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens a second of one engine: of prompts, and of one answer."""

    prefill: float
    decode: float


@dataclass(frozen=True, slots=True)
class Ahead:
    """What an engine was asked for and has not answered with a first byte: tokens. `answer` is the longest answer
    that is to come in one piece, None where nobody said how long it may be; `answers` is how many there are."""

    prompts: int = 0
    longest: int = 0
    answer: int | None = 0
    answers: int = 0


def prefill_s(ahead: Ahead, rates: Rates) -> float:
    """Seconds that its prompts are likely to take."""
    return ahead.prompts / rates.prefill * (1 + ahead.longest / SLOWER_AT)


def stall_limit(least: float, ahead: Ahead, rates: Rates) -> float:
    """T_stall in seconds. Not scaled with the rest of the times: prompts take what they take."""
    return max(least, FACTOR * prefill_s(ahead, rates))


def answer_limit(least: float, ahead: Ahead, rates: Rates, *, context: int, parallel: int) -> float:
    """The same for answers that come in one piece, of which nothing is seen before their end. One whose length nobody
    said may fill the context; those that have no slot wait for those that do."""
    tokens = context if ahead.answer is None else min(ahead.answer, context)
    rounds = max(1, -(-ahead.answers // max(1, parallel)))
    return max(least, FACTOR * (prefill_s(ahead, rates) + rounds * tokens / rates.decode))


def canary_limit(usual: float, whole: float, *, answers: int, in_flight: int, parallel: int) -> float:
    """How long a token of ours may be out: until an answer in one piece is at its end (`whole`), where such answers may
    have every slot. Beside a free one it waits for nobody."""
    return whole if answers and in_flight >= parallel else usual


FULL = 5.0
"""Of T_stall: how long an engine without a free slot, whose own counters move, is not asked for a token."""


def queues(*, free: bool | None, moved_s: float | None, quiet_s: float, stall: float) -> bool:
    """Whether a token of ours would only stand in line: every slot is taken by work that gets on (a tool call is
    held back whole by some engines). Seconds since its own counters moved, and since the last sign of life. A loop
    that counts and delivers nothing looks the same, so that this has an end."""
    works = moved_s is not None and moved_s < stall
    return free is False and works and quiet_s < FULL * stall
