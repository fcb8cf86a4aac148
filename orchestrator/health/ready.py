"""The verdict *ready*: whether requests may go to an engine. Pure.

It is taken back sooner than *live*: what looks bad gets no new requests, and is restarted only when it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.decision import Decision
from orchestrator.health.live import Live

ERRORS = 2
"""Canaries in a row that were answered with an error."""


class Ready(StrEnum):
    READY = "ready"
    NOT_READY = "not_ready"


@dataclass(frozen=True, slots=True)
class Facts:
    """`errors` and `refused` are how many canaries in a row were answered with an error, and how many probes in a row
    found nobody; `delivers` is whether a client was given something since the first of them."""

    draining: bool
    live: Decision[Live]
    errors: int
    refused: int
    delivers: bool


def decide(facts: Facts) -> Decision[Ready]:
    """Ready, or the reason why not."""
    if facts.draining:
        return Decision(Ready.NOT_READY, "draining")
    if not facts.live.action.alive:
        return Decision(Ready.NOT_READY, facts.live.reason)
    if facts.refused and not facts.delivers:
        return Decision(Ready.NOT_READY, "refuses_connections", {"probes": facts.refused})
    if facts.errors >= ERRORS and not facts.delivers:
        return Decision(Ready.NOT_READY, "answers_errors", {"canaries": facts.errors, "limit": ERRORS})
    return Decision(Ready.READY, "answers")
