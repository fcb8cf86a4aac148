"""An engine that takes more memory than its plan expects: the next start beside it may not fit."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.issue_rules._sight import Found, Sight

CODE = "memory_above_plan"
SHARE = 1.15
"""What the forecast promises at the 95th percentile; more is a fault of the forecast or of the engine."""
LEAST = 2**30
"""Bytes above the plan that are worth a person's time."""


def detect(sight: Sight) -> Iterator[Found]:
    for view in sight.deployments:
        for engine in view.engines:
            if engine.memory is None or engine.memory.observed is None:
                continue
            expected, observed = engine.memory.expected.total, engine.memory.observed
            if observed <= expected * SHARE or observed - expected < LEAST:
                continue
            name = view.deployment
            yield Found(
                name,
                f"{name} takes {observed / 2**30:.1f} GiB, and its plan expects {expected / 2**30:.1f} GiB",
                f"this host remembers it for the next plan; `outrider apply {name}` makes one now",
                {"observed_bytes": observed, "observed_bytes_limit": round(expected * SHARE)},
                name,
            )
            break


def withdraw(subject: str) -> str:
    return f"{subject} takes no more than its plan expects, or its engine is gone"
