"""What must never be, looked for in every round: the lifecycle's invariants, where they could break.

A test drives thousands of histories without finding one; should there be one all the same, it is said, and
the step that must never be taken is not taken.
"""

from __future__ import annotations

import structlog

from orchestrator import lifecycle
from orchestrator.decision import Decision
from orchestrator.events import Journal
from orchestrator.lifecycle import Situation, Step

log = structlog.get_logger("defects")


class Defects:
    """Those of one deployment. Each is told once, until it has gone."""

    def __init__(self, name: str, journal: Journal) -> None:
        self._name = name
        self._journal = journal
        self._told: str | None = None

    def forbids(self, situation: Situation, decision: Decision[Step]) -> bool:
        """Whether this step must not be taken in this situation."""
        forbidden = lifecycle.forbidden(situation, decision)
        wrong = forbidden or lifecycle.broken(situation)
        if wrong is not None and wrong != self._told:
            log.error("invariant_broken", deployment=self._name, step=decision.action, what=wrong)
            self._journal.emit(
                "lifecycle",
                "invariant_broken",
                f"{self._name}: {wrong}; this is a defect of Outrider",
                deployment=self._name,
                evidence={"step": decision.action.value, "reason": decision.reason, "taken": forbidden is None},
            )
        self._told = wrong
        return forbidden is not None
