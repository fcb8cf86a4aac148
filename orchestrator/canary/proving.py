"""The proof before ready (`orchestrator.proof`), with a name for what is at fault where drafting is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from containers.spec import LogLine
from orchestrator import proof
from orchestrator.canary import drafting
from orchestrator.engine import Engine
from orchestrator.engine_client import EngineClient
from orchestrator.errors import EngineFailed
from orchestrator.events import Journal
from orchestrator.plan import Method
from orchestrator.runtimes import adapter
from orchestrator.telling.amounts import count
from orchestrator.timing import Timing

Tail = Callable[[Engine], Awaitable[Sequence[LogLine]]]


async def prove(
    engine: Engine, client: EngineClient, *, tail: Tail, journal: Journal | None, timing: Timing
) -> proof.Proof:
    """See `proof.prove`. `tail` gives the last lines of the engine's log, where the cause of silence stands."""
    plan = engine.plan
    try:
        proven = await proof.prove(client, adapter(plan.runtime), plan, timing=timing)
    except EngineFailed as error:
        if plan.method is not Method.NONE and error.code in drafting.SILENT:
            name, why = drafting.cause(plan, [line.text for line in await tail(engine)])
            error.evidence = {**error.evidence, "cause": name}
            error.detail = f"{error.detail} ({why})"
        raise
    if plan.method is not Method.NONE and journal is not None:
        taken = drafting.clamped(plan, [line.text for line in await tail(engine)])
        if taken is not None:
            drafts = count(taken, "token")
            text = f"{engine.name} drafts {drafts} at once, not {plan.draft_tokens}: its drafter has no more"
            numbers = {"planned": plan.draft_tokens, "taken": taken, "drafter": plan.drafter}
            journal.emit("canary", "draft_clamped", text, deployment=engine.deployment, evidence=numbers)
    return proven
