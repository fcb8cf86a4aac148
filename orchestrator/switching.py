"""How to get from one engine to another without losing a request. Pure.

Make before break when both fit in memory at once: the new engine proves itself
while the old one serves. Else hold arrivals, drain, swap; but not when that would
leave the model unserved for longer than is allowed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.decision import Decision


class Switch(StrEnum):
    """How the switch is carried out."""

    MAKE_BEFORE_BREAK = "make_before_break"
    BREAK_BEFORE_MAKE = "break_before_make"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class SwitchFacts:
    """Bytes and seconds. None is unknown.

    `needed` is what the new engine is expected to take, `free` what the device has left
    beside all that runs or is being loaded. `unserved_s` is the expected time from the
    old engine's end to the new one's readiness.
    """

    needed: int
    free: int | None
    unserved_s: float | None
    max_switch_s: float | None
    """The longest the model may go unserved; None when a person asked for the switch."""


def decide(facts: SwitchFacts) -> Decision[Switch]:
    """Make before break, break before make, or refuse; the evidence holds the numbers."""
    evidence: dict[str, object] = {
        "needed_bytes": facts.needed,
        "free_bytes": facts.free,
        "unserved_s": None if facts.unserved_s is None else round(facts.unserved_s, 3),
        "max_switch_s": facts.max_switch_s,
    }
    if facts.free is not None and facts.needed <= facts.free:
        return Decision(Switch.MAKE_BEFORE_BREAK, "both_fit", evidence)
    if facts.max_switch_s is None:
        return Decision(Switch.BREAK_BEFORE_MAKE, "asked_for", evidence)
    if facts.unserved_s is None:
        return Decision(Switch.REFUSE, "switch_too_costly", {**evidence, "why": "nobody has measured a start yet"})
    if facts.unserved_s > facts.max_switch_s:
        return Decision(Switch.REFUSE, "switch_too_costly", evidence)
    return Decision(Switch.BREAK_BEFORE_MAKE, "short_enough", evidence)
