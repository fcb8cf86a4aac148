"""Whether an engine is as fast as it usually is on this host. Pure.

The 95th percentile of the time to a stream's first token, and the tokens a second of one request alone, each against
what was measured here before of the same model, variant, runtime, version, architecture, method and drafter. Both are
of requests that were alone at the engine: a queue is no fault of its. What it leads to is an issue and the verdict
*degraded*, never a restart.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.decision import Decision

FIRST_SLOW, FIRST_WELL = 3.0, 2.0
"""Of what is usual: above the first it is slow, and it stays so until it is below the second. Ours: whether a prompt's
beginning is in the cache makes more of a difference for one stream, and less for the slowest of twenty."""
DECODE_SLOW, DECODE_WELL = 2.5, 1.8
"""The same for tokens a second: with one drafter, code was decoded at 227 of them and prose at 132, which is well."""
NOTICED = 0.5
"""Seconds beyond what is usual that a person notices."""
STREAMS = 20
"""The fewest of which a 95th percentile is one."""


class Speed(StrEnum):
    USUAL = "usual"
    SLOW = "slow"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds to the first token, of how many streams, and tokens a second: now, and usually. None is not known."""

    streams: int = 0
    first_s: float | None = None
    usual_first_s: float | None = None
    tokens_s: float | None = None
    usual_tokens_s: float | None = None


def decide(pace: Pace, *, was: bool) -> Decision[Speed]:
    """`was` is whether it was found slow the last time."""
    first, decode = _first_limit(pace, was=was), _decode_limit(pace, was=was)
    if first is None and decode is None:
        return Decision(Speed.UNKNOWN, "nothing_to_compare")
    evidence: dict[str, object] = {}
    if first is not None:
        evidence |= {"streams": pace.streams, "first_s": pace.first_s, "first_s_limit": round(first, 3)}
        evidence["usual_first_s"] = pace.usual_first_s
    if decode is not None:
        evidence |= {"tokens_s": pace.tokens_s, "tokens_s_limit": round(decode, 3)}
        evidence["usual_tokens_s"] = pace.usual_tokens_s
    if first is not None and pace.first_s is not None and pace.first_s > first:
        return Decision(Speed.SLOW, "first_token_late", evidence)
    if decode is not None and pace.tokens_s is not None and pace.tokens_s < decode:
        return Decision(Speed.SLOW, "decodes_slowly", evidence)
    return Decision(Speed.USUAL, "as_usual", evidence)


def _first_limit(pace: Pace, *, was: bool) -> float | None:
    if pace.first_s is None or not pace.usual_first_s or pace.streams < STREAMS:
        return None
    factor = FIRST_WELL if was else FIRST_SLOW
    return max(pace.usual_first_s * factor, pace.usual_first_s + NOTICED * factor / FIRST_SLOW)


def _decode_limit(pace: Pace, *, was: bool) -> float | None:
    if pace.tokens_s is None or not pace.usual_tokens_s:
        return None
    return pace.usual_tokens_s / (DECODE_WELL if was else DECODE_SLOW)
