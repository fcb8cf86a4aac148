"""The verdict *live*: whether an engine has to be started anew. Pure.

Not live is one that nobody can connect to any more, and one of which two witnesses say that it stalls, each for
T_stall. One witness never is enough: each of them has been wrong about a healthy engine. What an engine is seen to do
besides (compile, read from a disk) buys it time, within bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from orchestrator.decision import Decision
from orchestrator.health.signals import Seen, Sign, signs

REFUSALS = 3
"""So many in a row: nobody listens."""
NEEDED = 2
"""Witnesses."""


class Live(StrEnum):
    """What follows."""

    LIVE = "live"
    SUSPECT = "suspect"
    """Something is odd; it goes on."""
    BUSY = "busy"
    """It would count as stalled, and is seen to do something."""
    STALLED = "stalled"
    REFUSES = "refuses"
    ERRORS = "errors"
    """It answers, and never with anything but an error, or that it had no room while it has."""

    @property
    def alive(self) -> bool:
        return self not in (Live.STALLED, Live.REFUSES, Live.ERRORS)


@dataclass(frozen=True, slots=True)
class Doing:
    """What it is seen to do besides serving: monotonic seconds until which that is an excuse, with the reason.
    `bound` is the longest in all that an engine may be silent for such reasons, seconds."""

    until: float | None = None
    what: str = ""
    bound: float = 0.0


NOTHING = Doing()


@dataclass(frozen=True, slots=True)
class Question:
    """An engine, and how long refusals have to go on (seconds)."""

    seen: Seen
    refused_for: float
    doing: Doing = field(default_factory=Doing)


def decide(question: Question) -> Decision[Live]:
    """The verdict, with each sign as evidence."""
    seen = question.seen
    refused = _refuses(question)
    if refused is not None:
        return refused
    failing = _answers_errors(seen) or _turns_all_away(seen)
    if failing is not None:
        return failing
    found = signs(seen)
    holding = [sign for sign in found if sign.holds]
    witnesses = {sign.witness for sign in holding}
    evidence = {
        "signs": [dict(sign.evidence()) for sign in found],
        "limit_s": round(seen.limit, 2),
        "silent_s": round(seen.now - seen.life, 2),
    }
    if len(witnesses) >= NEEDED:
        doing = question.doing
        silent = min(sign.seconds for sign in holding)
        if doing.until is not None and seen.now < doing.until and silent < doing.bound:
            return Decision(Live.BUSY, doing.what, {**evidence, "at_most_s": round(doing.bound, 2)})
        return Decision(Live.STALLED, "engine_stalled", evidence)
    if holding:
        return Decision(Live.SUSPECT, f"only_{holding[0].witness.value}", evidence)
    if seen.held_back:
        return Decision(Live.LIVE, "clients_read_slowly", evidence)
    return Decision(Live.LIVE, "progress", evidence)


def _refuses(question: Question) -> Decision[Live] | None:
    seen, asked = question.seen, question.seen.progress
    if asked.refused < REFUSALS or asked.refused_since is None:
        return None
    seconds = seen.now - max(asked.refused_since, seen.life)
    if seconds < question.refused_for:
        return None
    evidence = {"refused": asked.refused, "seconds": round(seconds, 2), "limit_s": round(question.refused_for, 2)}
    return Decision(Live.REFUSES, "engine_unresponsive", evidence)


def _answers_errors(seen: Seen) -> Decision[Live] | None:
    """Two witnesses as well: tokens of ours come back as errors, and no client was given anything meanwhile (an
    engine whose health path said 200 while every completion was a 500: hermes-agent #104050)."""
    asked = seen.canary
    if asked.failed < REFUSALS or asked.pending is None:
        return None
    seconds = seen.now - max(asked.pending, seen.life)
    if seconds < seen.limit:
        return None
    evidence = {"errors": asked.failed, "seconds": round(seconds, 2), "limit_s": round(seen.limit, 2)}
    return Decision(Live.ERRORS, "answers_errors", evidence)


def _turns_all_away(seen: Seen) -> Decision[Live] | None:
    """Having too much to do is no fault, and one that has nothing to do cannot have it: a token of ours is turned away
    again and again, no client was given anything meanwhile, and there is room."""
    asked = seen.canary
    if asked.turned_away < REFUSALS or asked.away_since is None or not seen.unused:
        return None
    limit = seen.answer_limit if seen.delivery is not None and seen.delivery.answers else seen.limit
    seconds = seen.now - max(asked.away_since, seen.life)
    if seconds < limit:
        return None
    evidence = {"turned_away": asked.turned_away, "seconds": round(seconds, 2), "limit_s": round(limit, 2)}
    return Decision(Live.ERRORS, "turns_all_away", evidence)


def told(found: Sequence[Sign]) -> str:
    """The signs that hold, as a person reads them."""
    return "; ".join(f"{sign.text} for {sign.seconds:.0f} s" for sign in found if sign.holds)
