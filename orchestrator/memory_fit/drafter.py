"""What a drafter's weights take on one device, by runtime."""

from __future__ import annotations

from orchestrator.memory_fit.demand import Demand
from orchestrator.memory_fit.sizes import whole


def sharded(demand: Demand) -> int:
    """vLLM and SGLang: the drafter runs on as many ranks as the target, so each holds its share, unless vLLM is told
    to leave it whole; then one holds all of it, and the plan is for that one."""
    return whole(demand.drafter_bytes, demand.drafter_on)


def llama_cpp(demand: Demand) -> int:
    """llama.cpp: a drafter is small, and its layers stay on one device, which is the one to plan for."""
    return demand.drafter_bytes
