"""How long a start may take before it counts as failed. Pure."""

from __future__ import annotations

from orchestrator.kinds import Backend
from orchestrator.plan import Plan

SLACK = 2.0
"""So many times what is usual or was seen: caches are cold, disks are busy, another model loads as well."""

MOST = 7200.0
"""Seconds: the longest that a start seen here makes the next one wait."""


def load_limit(least: float, prior: float, measured: float | None) -> float:
    """Seconds. `least` is the default for all; what is usual for such a model, or was seen here, only lengthens it.

    What was seen lengthens it up to `MOST`: each start may take as long as the last one allows, and would else
    allow the next one twice that.
    """
    return max(least, SLACK * prior, min(SLACK * (measured or 0.0), MOST))


def backend(plan: Plan, arch: str) -> Backend:
    """What computes for this plan, as far as its devices tell."""
    if not plan.devices:
        return Backend.CPU
    if arch.startswith("gfx"):
        return Backend.ROCM
    return Backend.CUDA if arch.startswith("sm_") else Backend.VULKAN
