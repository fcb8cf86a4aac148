"""One start that any number of callers wait for: all hear how the same one ended.

Who asks for a start while one is on its way joins it. It has landed when the model serves, when an attempt
failed or cannot be made now, or when it is no longer to run; what is tried after that is the next flight.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from orchestrator.decision import Decision
from orchestrator.deployment import PASSING, Deployment
from orchestrator.lifecycle import Step
from orchestrator.views import State, Why

CALLED_OFF = "called_off"
DAEMON_ENDS = "daemon_ends"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a start ended: `generation` serves, or `why` it does not."""

    generation: int | None = None
    why: Why | None = None

    @property
    def ready(self) -> bool:
        return self.generation is not None


def landed(d: Deployment, decision: Decision[Step], *, busy: bool) -> Outcome | None:
    """How the start that is on its way has ended; None while it has not. `busy`: a step is in hand."""
    engine = d.serving_engine
    if not d.should_run:
        return Outcome(why=Why(CALLED_OFF, f"{d.name} is to stop ({d.desired_by or 'the daemon ends'})"))
    if engine is not None and engine.state is State.READY and not engine.exited.is_set() and not busy:
        return Outcome(engine.generation)
    if busy or decision.action is not Step.WAIT or decision.reason in PASSING:
        return None
    reason = d.shown_reason or Why(decision.reason, f"{d.name} cannot be started now ({decision.reason})")
    return Outcome(why=reason)


class Flight:
    """The start of one deployment that somebody waits for; none at most times."""

    def __init__(self) -> None:
        self._landing: asyncio.Future[Outcome] | None = None

    @property
    def awaited(self) -> bool:
        """Whether anybody waits."""
        return self._landing is not None

    async def join(self) -> Outcome:
        """Wait for the end of the start that is on its way, or about to be. Whoever stops waiting changes nothing."""
        if self._landing is None:
            self._landing = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self._landing)

    def land(self, outcome: Outcome) -> None:
        """Tell all who wait."""
        landing, self._landing = self._landing, None
        if landing is not None and not landing.done():
            landing.set_result(outcome)
