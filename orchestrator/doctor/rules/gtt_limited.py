"""Half of an APU's memory is all that the kernel gives its GPU by default."""

from __future__ import annotations

from collections.abc import Iterator

from hosts.system import reserve
from orchestrator.doctor import fixes
from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "gtt_limited"
SEVERITY = Severity.PROBLEM
NEEDS = ("facts", "kernel")
SUPERSEDES = ("gtt_limited",)
SOURCE = (
    "ttm.pages_limit sets the GTT ceiling one to one (nix-amd-ai#42); amdgpu.gttsize is deprecated (ROCm issue 5595)"
)


def check(machine: Machine) -> Iterator[Fault]:
    for problem in machine.problems("gtt_limited"):
        system, total = machine.facts.memory.total, 0
        total = max((g.memory_total or 0 for g in machine.gpus("amd") if g.unified), default=0)
        pages = wanted_pages(machine)
        yield Fault(
            problem.detail,
            {"memory_total": system, "gpu_pool": total, "pages_limit": current(machine), "pages_wanted": pages},
            fixes.kernel_argument(machine.system, add=f"{module(machine)}.pages_limit={pages}"),
        )


def wanted_pages(machine: Machine) -> int:
    """All of the machine's memory but what the host keeps for itself, in pages of 4 KiB."""
    system = machine.facts.memory.total
    return max(system - reserve(system), 0) // 4096


def module(machine: Machine) -> str:
    """The memory manager in use: AMD's out-of-tree driver has one of its own."""
    return next((m for m in ("amdttm", "amd_ttm") if f"{m}.pages_limit" in machine.kernel.parameters), "ttm")


def current(machine: Machine) -> str | None:
    """The limit that the running kernel has."""
    return machine.kernel.parameters.get(f"{module(machine)}.pages_limit")
