"""What an engine said, held against what its weights say. Pure.

Bit for bit it need not be the same: another kernel, another batch, a cache read instead of computed move the last
digits, and where two tokens are as good as equally likely the other one wins. So a tie may fall either way, and the
likelihood of a known text may move a little. What may not happen is that it says what its weights would not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from orchestrator.canary.passages import LEADING, TEXTS
from orchestrator.canary.reference import Passage, Reference
from orchestrator.decision import Decision

DRIFT = 0.5
"""Nats a token: how far the likelihood of the known text may be from its calibration."""
TIE = 0.5
"""Nats: tokens this close to the likeliest are as good as it."""
AGREEING = 2
"""Of three answers, so many must begin as they should."""


class Outcome(StrEnum):
    """Of one look at an engine."""

    PASSED = "passed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Answer:
    """What an engine said, drafting as it does. `below`: how many nats each of its first tokens is below the likeliest,
    by the same engine asked for one token at a time; asked only where the answer is not the known one."""

    tokens: tuple[int, ...]
    below: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """All that was asked. `scored` are the log-probabilities of the first passage's tokens; None was not asked."""

    scored: tuple[float, ...] | None
    answers: Mapping[str, Answer]
    long: tuple[str, Answer] | None = None
    pair: Mapping[str, Answer] | None = None


def leading(passage: Passage, answer: Answer) -> int:
    """How many tokens from the first on are the same."""
    same = 0
    for known, said in zip(passage.tokens, answer.tokens, strict=False):
        if known != said:
            break
        same += 1
    return same


def needed(passage: Passage) -> int:
    """How many have to be: all, where fewer are known."""
    return min(LEADING, len(passage.tokens))


def begins_right(passage: Passage, answer: Answer) -> bool:
    """Whether an answer begins as it should, or parts from it where another token was as good."""
    if leading(passage, answer) >= needed(passage):
        return True
    below = answer.below
    return below is not None and len(below) >= needed(passage) and max(below) <= TIE


def pair_of(reference: Reference) -> tuple[str, str] | None:
    """Two passages that begin differently, to be asked at once: the last two that do."""
    names = [str(n) for n in range(len(TEXTS))]
    found = [
        (one, other)
        for at, one in enumerate(names)
        for other in names[at + 1 :]
        if reference.passages[one].tokens[:LEADING] != reference.passages[other].tokens[:LEADING]
    ]
    return found[-1] if found else None


def judge(reference: Reference, seen: Observation, *, exact: bool = False) -> Decision[Outcome]:
    """The verdict, with all numbers. `exact`: the plan says that its engine repeats itself to the last bit."""
    numbers = _numbers(reference, seen)
    for check in (_likelihood, _beginnings, _long, _together):
        reason = check(reference, seen)
        if reason is not None:
            return Decision(Outcome.FAILED, reason, numbers)
    if exact and any(reference.passages[n].tokens != a.tokens for n, a in seen.answers.items()):
        return Decision(Outcome.FAILED, "digest_differs", numbers)
    return Decision(Outcome.PASSED, "as_the_weights_say", numbers)


def _likelihood(reference: Reference, seen: Observation) -> str | None:
    if seen.scored is None:
        return None
    known = reference.passages["0"].logprobs[: len(seen.scored)]
    off = sum(seen.scored) / len(seen.scored) - sum(known) / len(known)
    return None if abs(off) <= DRIFT else "likelihood_off"


def _beginnings(reference: Reference, seen: Observation) -> str | None:
    right = sum(begins_right(reference.passages[n], a) for n, a in seen.answers.items())
    return None if right >= min(AGREEING, len(seen.answers)) else "text_differs"


def _long(reference: Reference, seen: Observation) -> str | None:
    if seen.long is None:
        return None
    name, answer = seen.long
    return None if begins_right(reference.passages[name], answer) else "long_prompt_differs"


def _together(reference: Reference, seen: Observation) -> str | None:
    if seen.pair is None:
        return None
    wrong = [n for n, a in seen.pair.items() if not begins_right(reference.passages[n], a)]
    if not wrong:
        return None
    mixed = any(
        leading(reference.passages[other], seen.pair[name]) >= needed(reference.passages[other])
        for name in wrong
        for other in seen.pair
        if other != name
    )
    return "answers_mixed_up" if mixed else "together_differs"


def _numbers(reference: Reference, seen: Observation) -> dict[str, object]:
    found: dict[str, object] = {
        "leading": {n: leading(reference.passages[n], a) for n, a in seen.answers.items()},
        "leading_needed": LEADING,
        "begins_right": sum(begins_right(reference.passages[n], a) for n, a in seen.answers.items()),
        "begins_right_needed": AGREEING,
    }
    if seen.scored is not None:
        known = reference.passages["0"].logprobs[: len(seen.scored)]
        found |= {
            "nats": round(sum(seen.scored) / len(seen.scored), 4),
            "nats_calibrated": round(sum(known) / len(known), 4),
            "nats_limit": DRIFT,
        }
    below = [b for a in seen.answers.values() if a.below is not None for b in a.below]
    if below:
        found |= {"below_likeliest": round(max(below), 4), "below_likeliest_limit": TIE}
    if seen.long is not None:
        name, answer = seen.long
        found |= {"long": name, "long_leading": leading(reference.passages[name], answer)}
    if seen.pair is not None:
        found["pair_leading"] = {n: leading(reference.passages[n], a) for n, a in seen.pair.items()}
    return found


SAID: Mapping[str, str] = {
    "likelihood_off": "it finds a known text {off:.2f} nats a token less or more likely than its weights do"
    " ({nats:.2f} instead of {nats_calibrated:.2f}, {nats_limit} allowed)",
    "text_differs": "only {begins_right} of 3 answers begin as its weights have it ({begins_right_needed} must)",
    "long_prompt_differs": "after a prompt that is longer than it reads at once it goes on differently",
    "answers_mixed_up": "of two requests at once one got the other's answer",
    "together_differs": "two requests at once are not answered as each alone is",
    "digest_differs": "the plan says that it repeats itself exactly, and it does not",
}
"""What each reason means, for people; filled from the numbers."""


def said(verdict: Decision[Outcome]) -> str:
    """A verdict of failure in a sentence."""
    numbers = dict(verdict.evidence)
    nats, known = numbers.get("nats"), numbers.get("nats_calibrated")
    if isinstance(nats, float) and isinstance(known, float):
        numbers["off"] = abs(nats - known)
    return SAID[verdict.reason].format(**numbers)
