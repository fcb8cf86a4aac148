"""A GTT ceiling above the memory that exists lets a load freeze the host."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor import fixes
from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine
from orchestrator.doctor.rules.gtt_limited import module, wanted_pages

CODE = "gtt_above_memory"
SEVERITY = Severity.PROBLEM
NEEDS = ("facts", "kernel")
SUPERSEDES = ("gtt_above_memory",)
SOURCE = "a 128 GiB ceiling on a machine with 125 GiB (ROCm issue 6004): allocations succeed that nothing stands behind"


def check(machine: Machine) -> Iterator[Fault]:
    for problem in machine.problems("gtt_above_memory"):
        pages = wanted_pages(machine)
        fix = fixes.kernel_argument(machine.system, add=f"{module(machine)}.pages_limit={pages}")
        if machine.kernel.given("amdgpu.gttsize") is not None:
            fix = (*fixes.kernel_argument(machine.system, remove="amdgpu.gttsize")[:1], *fix)
        given = {key: value for word in machine.kernel.command_line for key, _, value in [word.partition("=")]}
        asked = {key: value for key, value in given.items() if key.endswith((".pages_limit", ".gttsize"))}
        yield Fault(problem.detail, {"memory_total": machine.facts.memory.total, "asked_for": asked}, fix)
