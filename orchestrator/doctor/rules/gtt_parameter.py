"""Kernel parameters about GTT that do nothing, will go away, or did not take."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor import fixes
from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine
from orchestrator.doctor.rules.gtt_limited import current, module, wanted_pages

CODE = "gtt_parameter"
SEVERITY = Severity.PROBLEM
NEEDS = ("facts", "kernel")
SUPERSEDES = ("kernel_parameter",)
SOURCE = (
    "the kernel ignores amdgpu.gtt_size without a word, and says of amdgpu.gttsize that it is "
    "deprecated (ROCm issue 5595)"
)
COMMAND_LINE = "the kernel's command line"


def check(machine: Machine) -> Iterator[Fault]:
    for name, place, value in _given(machine):
        if name == "gtt_size":
            finding = f"the kernel ignores amdgpu.gtt_size ({place}): the parameter is misspelt"
            yield Fault(finding, {"place": place, "value": value}, _moved(machine, place, name, value))
        elif name == "gttsize" and value != "-1":
            finding = f"amdgpu.gttsize={value} ({place}) is deprecated and will stop working"
            yield Fault(
                finding, {"place": place, "value": value}, _moved(machine, place, name, value), Severity.WARNING
            )
    running = current(machine)
    for owner in ("ttm", "amdttm", "amd_ttm"):
        asked = machine.kernel.given(f"{owner}.pages_limit")
        if asked is not None and running is not None and asked != running:
            use = module(machine)
            yield Fault(
                f"the kernel was started with {owner}.pages_limit={asked}, but {use} has {running}",
                {"asked": asked, "running": running, "module": use},
                fixes.kernel_argument(machine.system, add=f"{use}.pages_limit={asked}"),
            )


def _given(machine: Machine) -> Iterator[tuple[str, str, str]]:
    for word in machine.kernel.command_line:
        key, _, value = word.partition("=")
        if key in {"amdgpu.gtt_size", "amdgpu.gttsize"}:
            yield key.removeprefix("amdgpu."), COMMAND_LINE, value
    for option in machine.kernel.options:
        if option.module == "amdgpu" and option.name in {"gtt_size", "gttsize"}:
            yield option.name, option.file, option.value


def _moved(machine: Machine, place: str, name: str, value: str) -> tuple[str, ...]:
    """The same ceiling in the words that count: the old ones are MiB, the new ones pages of 4 KiB."""
    pages = int(value) * 256 if value.isdigit() and int(value) else wanted_pages(machine)
    add = f"{module(machine)}.pages_limit={pages}"
    if place == COMMAND_LINE:
        return fixes.kernel_argument(machine.system, add=add, remove=f"amdgpu.{name}")
    return (f"sed -i '/{name}=/d' {place}", *fixes.kernel_argument(machine.system, add=add))
