"""Under which heading a measurement of an engine is filed. Pure."""

from __future__ import annotations

import json

from hosts.facts import Accelerator, HostFacts
from orchestrator import device_need
from orchestrator.measured import Ran
from orchestrator.plan import Method, Plan

CPU = "cpu"


def gpus(plan: Plan, facts: HostFacts) -> tuple[Accelerator, ...]:
    """The accelerators that the plan takes, as far as the host shows them."""
    taken = {device.pci for device in device_need.used_by(plan, facts)}
    return tuple(a for a in facts.accelerators if a.pci in taken)


def of(plan: Plan, facts: HostFacts) -> Ran:
    """The heading of an engine of this plan; the same as the planner looks a candidate up by."""
    taken = gpus(plan, facts)
    arch = CPU if not plan.devices else next((a.arch for a in taken if a.arch), "unknown")
    return Ran(plan.model, plan.variant, plan.runtime, plan.runtime_version, arch, plan.method, plan.drafter)


def driver(plan: Plan, facts: HostFacts) -> str | None:
    """The driver below it; None for the CPU, and where nobody knows. Measurements with another one are kept
    apart: they say nothing of this one, and hold again should it come back."""
    return next((a.driver for a in gpus(plan, facts) if a.driver), None)


def drivers(facts: HostFacts) -> frozenset[str | None]:
    """All drivers that this host has now, with None for what needs none."""
    return frozenset({None, *(a.driver for a in facts.accelerators)})


def to_text(ran: Ran) -> str:
    """A heading as the ledger keeps it."""
    return json.dumps([ran.model, ran.variant, ran.runtime, ran.version, ran.arch, ran.method.value, ran.drafter])


def from_text(text: str) -> Ran | None:
    """`to_text` read back; None for what another version wrote."""
    try:
        model, variant, runtime, version, arch, method, drafter = json.loads(text)
        if not all(isinstance(word, str) for word in (model, variant, runtime, arch, version or "", drafter or "")):
            return None
        return Ran(model, variant, runtime, version, arch, Method(method), drafter)
    except (ValueError, TypeError):
        return None
