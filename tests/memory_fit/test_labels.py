"""A container's label of another day still says what its engine takes."""

from __future__ import annotations

from dataclasses import asdict

from orchestrator.memory_fit import forecast
from orchestrator.models import Runtime
from orchestrator.plan import ExpectedMemory, Plan
from tests.daemon.world import a_plan
from tests.memory_fit import shapes as s

OLD = {"weights": 5, "kv": 4, "state": 3, "drafter": 2, "compute": 1, "total": 15, "budget": None}


def test_a_label_from_before_graphs_and_margins() -> None:
    label = {**a_plan().to_dict(), "expected_memory": OLD}
    memory = Plan.from_dict(label).expected_memory
    assert memory == ExpectedMemory(5, 4, 3, 2, 1, 15, None)
    assert memory.likely == 15
    assert (memory.graphs, memory.margin, memory.devices, memory.low) == (0, 0, 1, None)


def test_a_label_of_a_newer_daemon() -> None:
    label = {**a_plan().to_dict(), "expected_memory": {**OLD, "teleport": 7}}
    assert Plan.from_dict(label).expected_memory.total == 15


def test_every_kind_survives() -> None:
    whole = forecast(Runtime.VLLM, s.demand(s.QWEN_27B, 8192, weights=10**10, tensor_parallel=2), budget=10**10)
    label = {**a_plan().to_dict(), "expected_memory": asdict(whole)}
    assert Plan.from_dict(label).expected_memory == whole
