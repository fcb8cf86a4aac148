"""Emptying an engine that is to be unloaded, without cutting a stream: if it does not become empty, it stays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.engine import Engine
from orchestrator.views import State

if TYPE_CHECKING:
    from orchestrator.context import Context
    from orchestrator.deployment import Deployment


@dataclass(frozen=True, slots=True)
class Leaving:
    """Why a model is unloaded though nobody said that it should stop. `limit` is how many seconds its last answers
    may take; `by` whoever gets its room."""

    code: str
    text: str
    limit: float
    by: str | None = None
    evidence: Mapping[str, object] = field(default_factory=dict)


async def emptied(
    d: Deployment, engine: Engine, leaving: Leaving, context: Context, publish: Callable[[], None]
) -> bool:
    """Admit nothing more and wait for the last answer. Whether nothing is in flight any more; if not, the engine
    serves again as if nothing had been, unless it ended meanwhile: then it is for whoever cleans up."""
    engine.admit = False
    if engine.state is State.READY:
        engine.move(State.DRAINING)
    publish()
    drained = await context.gateway.drain(engine.id, leaving.limit, context.routing.revision)
    if drained.done:
        return True
    if engine.state is not State.DRAINING:
        return False
    engine.move(State.READY)
    engine.admit, d.called, d.leaving = True, True, None
    publish()
    context.journal.emit(
        "demand",
        "unload_called_off",
        f"{engine.name} stays: it is still answering",
        deployment=d.name,
        evidence={"reason": leaving.code, "drain": drained.reason, "in_flight": drained.in_flight, **leaving.evidence},
    )
    return False
