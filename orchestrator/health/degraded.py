"""The verdict *degraded*: it serves, and not as well as it should. Pure.

What makes it so is watched elsewhere, each with an issue of its own; here it becomes a property of the engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from orchestrator.decision import Decision

CAUSES: Mapping[str, str] = {
    "drafts_useless": "nothing that is drafted is accepted",
    "speculation_off": "it does not draft although its plan says so",
    "speculation_silent": "it drafts nothing although its plan says so",
    "gpu_degraded": "its GPU reports errors or is held back",
    "slower_than_usual": "it is slower than it usually is on this host",
    "conmon_dead": "nobody supervises its container",
    "network_path_broken": "its port leads nowhere",
}
"""Codes of issues, about a deployment, one of its engines, or one of its GPUs."""


class Degraded(StrEnum):
    WELL = "well"
    DEGRADED = "degraded"


def decide(issues: Iterable[str]) -> Decision[Degraded]:
    """By the codes of the issues that are open about it."""
    found = sorted(set(issues) & set(CAUSES))
    if not found:
        return Decision(Degraded.WELL, "nothing_known")
    return Decision(Degraded.DEGRADED, found[0], {"issues": found, "text": CAUSES[found[0]]})
