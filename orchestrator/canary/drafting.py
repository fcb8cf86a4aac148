"""Whether an engine drafts as its plan says, and what its silence is called. Pure.

An engine whose drafter does not fit goes on without it, healthy, at half the speed; the only sign is a line in its log,
or none at all. So what the plan says is compared with what the engine was told, says and counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from orchestrator.decision import Decision
from orchestrator.plan import NEEDS_DRAFTER, Method, Plan
from orchestrator.runtimes import diagnose, flags_of
from orchestrator.runtimes.base import EngineCounters
from orchestrator.runtimes.drafting import BY_RUNTIME, Drafting

LEAST_LENGTH = 1.02
"""Tokens that a step brings on average, the target's own one counted: at or below that nothing is accepted."""
LEAST_DRAFTS = 200
QUIET_TOKENS = 512
"""Tokens made without one draft before it is looked into. Requests for a token or two never draft, so that alone
proves nothing."""
SILENT = frozenset({"speculation_off", "speculation_not_drafting", "chat_failed"})
"""Codes of a proof that may be a drafter's fault."""
UNTOLD = Drafting(method=())


class Drafts(StrEnum):
    """How an engine drafts."""

    FINE = "fine"
    UNKNOWN = "unknown"
    USELESS = "useless"
    """It drafts, and nothing of it is accepted."""
    QUIET = "quiet"
    """It has made many tokens and drafted nothing."""
    OFF = "off"
    """It says itself that it has nothing to draft with."""
    TOO_WIDE = "too_wide"
    """Its drafts are longer than the plan says."""


def cause(plan: Plan, lines: Iterable[str]) -> tuple[str, str]:
    """Why an engine of this plan does not draft as it should: a stable name and a sentence. `lines` are its log's."""
    told = BY_RUNTIME.get(plan.runtime, UNTOLD)
    flags = flags_of(plan.argv)
    if told.method and not flags & set(told.method):
        return "method_not_said", f"its command line does not say {plan.method} ({told.method[0]} is missing)"
    if told.drafter and plan.method in NEEDS_DRAFTER and not flags & set(told.drafter):
        return "drafter_not_given", f"its command line names no drafter ({told.drafter[0]} is missing)"
    found = diagnose(lines, told.silences)
    if found is not None:
        return found.code, found.hint
    return "unknown", "nothing in its log says why"


def clamped(plan: Plan, lines: Iterable[str]) -> int | None:
    """The draft length that the engine took instead of the plan's; None where it took that, or does not say."""
    pattern = BY_RUNTIME.get(plan.runtime, UNTOLD).clamped
    found = [int(m[1]) for line in lines if pattern is not None and (m := pattern.search(line))]
    return found[-1] if found and found[-1] < plan.draft_tokens else None


@dataclass(frozen=True, slots=True)
class Window:
    """What an engine has counted since the last verdict. None: it does not count that."""

    generated: int | None
    drafts: int | None
    drafted: int | None
    accepted: int | None

    @classmethod
    def between(cls, before: EngineCounters, now: EngineCounters) -> Window:
        return cls(
            _grown(before.generated, now.generated),
            _grown(before.drafts, now.drafts),
            _grown(before.drafted, now.drafted),
            _grown(before.accepted, now.accepted),
        )

    @property
    def length(self) -> float | None:
        """Tokens a step brought: its own and those accepted."""
        if not self.drafts or self.accepted is None:
            return None
        return 1 + self.accepted / self.drafts


def judge(plan: Plan, seen: Window, says: bool | None) -> Decision[Drafts]:
    """The verdict. `says` is what the engine says of itself. A right drafter, of which every token is accepted, is
    as right as can be: a rate of 1.0 is no alarm."""
    numbers = {
        "drafts": seen.drafts,
        "drafted": seen.drafted,
        "accepted": seen.accepted,
        "generated": seen.generated,
        "length": None if seen.length is None else round(seen.length, 3),
        "length_limit": LEAST_LENGTH,
    }
    if plan.method is Method.NONE:
        return Decision(Drafts.FINE, "not_meant_to", {})
    if says is False:
        return Decision(Drafts.OFF, "says_so", numbers)
    if seen.drafts is not None and seen.drafts >= LEAST_DRAFTS:
        if seen.drafted is not None and seen.drafted / seen.drafts > max(plan.draft_tokens, 1) and _fixed(plan):
            return Decision(Drafts.TOO_WIDE, "longer_than_planned", {**numbers, "planned": plan.draft_tokens})
        if seen.length is not None and seen.length <= LEAST_LENGTH:
            return Decision(Drafts.USELESS, "nothing_accepted", numbers)
        return Decision(Drafts.FINE, "drafts", numbers)
    if not seen.drafts and (seen.generated or 0) >= QUIET_TOKENS and plan.method is not Method.NGRAM:
        return Decision(Drafts.QUIET, "no_drafts", numbers)
    return Decision(Drafts.UNKNOWN, "too_little_seen", numbers)


def _fixed(plan: Plan) -> bool:
    """Whether the length of a draft is the plan's: n-gram lookup takes what it finds, a tree has several at once."""
    return plan.method is not Method.NGRAM and plan.draft_tokens > 0


def _grown(before: int | None, now: int | None) -> int | None:
    return None if now is None else max(0, now - (before or 0))
