"""Whether it is the way to an engine that is broken, or the engine. Pure.

A Podman service that died inside a start may leave a rule that leads the port of a later engine elsewhere; a firewall
that was loaded anew drops Podman's own. The engine is well then, and to restart it as a failed one would be a lie: it
gets another port, which takes another container, and nothing is counted against it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.decision import Decision

LOOKS = 2
"""Looks in a row that have to agree before an engine is moved to another port."""


class Way(StrEnum):
    """What is known of the way to an engine."""

    OPEN = "open"
    BROKEN = "broken"
    UNKNOWN = "unknown"
    """The engine does not answer from inside either, or nobody can look there: not for this rule to say."""


@dataclass(frozen=True, slots=True)
class Ends:
    """Both ends of the way at one moment.

    `answers` is whether the engine answered through its published port, `connected` whether it came to a connection
    there. `inside` is the status that it gave inside its own network (None: none), `seen` whether that could be
    asked at all; `listens` whether its port is open there (None: it cannot be seen).
    """

    answers: bool
    connected: bool
    inside: int | None
    seen: bool
    listens: bool | None


def decide(ends: Ends) -> Decision[Way]:
    """What follows from one look."""
    evidence = {"connected": ends.connected, "inside": ends.inside, "listens": ends.listens}
    if ends.answers:
        return Decision(Way.OPEN, "answers", evidence)
    if ends.inside is not None:
        return Decision(Way.BROKEN, "answers_inside", evidence)
    if not ends.seen and ends.listens and not ends.connected:
        return Decision(Way.BROKEN, "listens_inside", evidence)  # one that hangs could be connected to
    return Decision(Way.UNKNOWN, "silent_inside" if ends.seen else "inside_not_seen", evidence)
