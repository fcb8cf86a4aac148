"""An engine that is slower than it usually is on this host. It serves on: nothing restarts for that."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.health import pace
from orchestrator.health.pace import Pace, Speed
from orchestrator.issue_rules._sight import Found, Sight

CODE = "slower_than_usual"


def detect(sight: Sight) -> Iterator[Found]:
    for view in sight.deployments:
        name = view.deployment
        for engine in view.engines:
            measured = sight.paces.get(engine.id)
            if measured is None:
                continue
            decision = pace.decide(measured, was=(CODE, name) in sight.open)
            if decision.action is not Speed.SLOW:
                continue
            yield Found(
                name,
                f"{name} is slower than it usually is here: {_words(measured, decision.reason)}",
                "`outrider top` shows clocks, power, temperature and who else computes;"
                f" `outrider restart {name}` starts it anew. Prompts of another kind look the same",
                {"reason": decision.reason, "generation": engine.generation, **decision.evidence},
                name,
            )
            break


def _words(seen: Pace, reason: str) -> str:
    if reason == "first_token_late":
        return (
            f"19 of 20 streams have their first token within {seen.first_s or 0:.2f} s,"
            f" usually within {seen.usual_first_s or 0:.2f} s"
        )
    return f"it decodes {seen.tokens_s or 0:.1f} tokens/s, usually {seen.usual_tokens_s or 0:.1f}"


def withdraw(subject: str) -> str:
    return f"{subject} is about as fast as it usually is, or its engine is gone"
