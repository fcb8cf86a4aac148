"""Carrying the governor's decisions out: rates in, switches asked of the actors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orchestrator import governor
from orchestrator.actor import Actor
from orchestrator.context import Cause, Context
from orchestrator.governor import Governing


async def govern(context: Context, actors: Sequence[Actor]) -> None:
    """One look at every deployment with a policy. Without word from the gateway nothing is known of the
    load, and nothing is decided."""
    if not context.gateway.heard:
        return
    for actor in actors:
        await _govern(context, actor)


async def _govern(context: Context, actor: Actor) -> None:
    d, now = actor.deployment, context.clock.now()
    policy = d.entry.speculation
    if policy.policy != "qps" or d.busy or d.serving_engine is None or not d.should_run:
        return
    rate = context.gateway.rate(d.name)
    d.governor = governor.observe(d.governor, policy, rate=rate, now=now)
    if not d.speculating and d.speculate:
        return  # the plan itself has no speculation: nothing to drop or resume
    decision = governor.decide(
        d.governor,
        policy,
        speculating=d.speculating,
        rate=rate,
        dwell=policy.dwell_s * context.timing.scale,
        now=now,
    )
    if decision.action is Governing.KEEP:
        return
    resume = decision.action is Governing.RESUME
    if context.automation.paused(d.name) is not None:
        author = context.automation.withhold(d.name, f"governor_{decision.action}")
        if author is not None:
            would = "resumed" if resume else "dropped"
            context.journal.emit(
                "governor",
                f"would_{decision.action.value}",
                f"speculation of {d.name} would be {would} at {rate:.2f} requests/s; automation is paused by {author}",
                deployment=d.name,
                evidence={"by": author, "reason": decision.reason, **decision.evidence},
            )
        return
    context.journal.emit(
        "governor",
        "speculation_resumed" if resume else "speculation_dropped",
        f"{d.name}: {rate:.2f} requests/s against {decision.evidence['threshold']}",
        deployment=d.name,
        evidence={"reason": decision.reason, **decision.evidence},
    )
    d.governor = replace(d.governor, above_since=None, below_since=None)
    cause = Cause(decision.reason, "governor", automatic=True, evidence=decision.evidence)
    await actor.replan(cause, speculate=resume)
