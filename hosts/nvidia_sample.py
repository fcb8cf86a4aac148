"""What the NVML child says of one GPU, as numbers that hold: the readings of a running host.

An entry of the child's answer is in NVML's own units and may be anything: a library of another
version, a GPU that was lost in the middle. Here it becomes a `GpuSample`, and a `Problem` where it
says that something is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hosts import pci
from hosts.facts import Memory, Problem
from hosts.gpu_sample import GpuProcess, GpuSample
from hosts.nvidia_errors import NOT_SUPPORTED, VENDOR, failure, lost, silent
from hosts.reading import known
from hosts.system import reserve

IDLE = 0x1
THROTTLES: Mapping[int, str] = {
    0x4: "software_power_cap",
    0x8: "hardware_slowdown",
    0x20: "software_thermal",
    0x40: "hardware_thermal",
    0x80: "power_brake",
}
"""Bits of nvmlDeviceGetCurrentClocksEventReasons that mean "slower than it could be". The others are what
somebody set (clocks of applications, the display, sync boost) or that there is nothing to do."""
_ECC = ("uncorrected", "remap_pending", "remap_failed", "retire_pending")
_MOST_PROCESSES = 4096


@dataclass(frozen=True, slots=True)
class Sign:
    """Why there may be an NVIDIA GPU: devices on the bus, the driver's nodes, its library."""

    gpus: tuple[pci.PciGpu, ...]
    driver: bool
    library: str | None
    remembered: tuple[str, ...] = ()
    """The addresses by index as the driver told them before: a GPU that is lost tells not even that."""

    def __bool__(self) -> bool:
        return bool(self.gpus or self.driver or self.library)


def entries(answer: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The GPUs of an answer, in NVML's order."""
    found = answer.get("gpus")
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def device_memory(entry: Mapping[str, Any]) -> dict[str, int] | None:
    """The memory of one GPU's entry, or None where the driver has none to tell (unified, failed)."""
    memory = entry.get("memory")
    if not isinstance(memory, dict) or not known(memory.get("total")):
        return None
    sizes = {key: size for key, value in memory.items() if (size := known(value)) is not None}
    return {key: size for key, size in sizes.items() if size <= sizes["total"]}


def is_unified(entry: Mapping[str, Any]) -> bool:
    """GB10, Thor and Orin share the host's memory: the calls are not supported, or say 0."""
    memory = entry.get("memory")
    if isinstance(memory, dict):
        return memory.get("total") == 0
    errors = entry.get("errors")
    return isinstance(errors, dict) and errors.get("memory") == NOT_SUPPORTED


def address(entry: Mapping[str, Any], sign: Sign, count: int) -> str | None:
    """The PCI address of an entry; where NVML does not say it, what it said before, or the kernel's list
    (all are in bus order)."""
    index = known(entry.get("index")) or 0
    said = pci.address(entry.get("pci"))
    if said is None and index < count == len(sign.remembered):
        return sign.remembered[index]
    if said is None and index < count == len(sign.gpus):
        return sign.gpus[index].address
    return said


def key(entry: Mapping[str, Any], sign: Sign, count: int) -> str:
    """What facts and samples know a GPU by: its address, or `nvidia-<index>` where there is none."""
    return address(entry, sign, count) or f"{VENDOR}-{known(entry.get('index')) or 0}"


def addresses(answer: Mapping[str, Any]) -> tuple[str, ...]:
    """The addresses by index, if every GPU of the answer has told its own; else nothing."""
    found = [pci.address(entry.get("pci")) for entry in entries(answer)]
    return tuple(where for where in found if where is not None) if None not in found else ()


def percent(value: object) -> int | None:
    """0 to 100, or None."""
    found = known(value)
    return found if found is not None and found <= 100 else None


def scaled(value: object, by: int) -> float | None:
    """A whole number of thousandths (or the like), or None."""
    found = known(value)
    return None if found is None else found / by


def throttles(reasons: int) -> tuple[str, ...]:
    """What keeps the clocks low, by name."""
    return tuple(text for bit, text in THROTTLES.items() if reasons & bit)


def processes(entry: Mapping[str, Any]) -> tuple[GpuProcess, ...] | None:
    """Who uses the GPU; None where the driver does not tell. A process in both lists computes."""
    found: dict[int, GpuProcess] = {}
    told = False
    for field, kind in (("processes", "compute"), ("graphics", "graphics")):
        listed = entry.get(field)
        if not isinstance(listed, list):
            continue
        told = True
        for one in listed[:_MOST_PROCESSES]:
            pid = known(one.get("pid")) if isinstance(one, dict) else None
            if pid:
                found.setdefault(pid, GpuProcess(pid, known(one.get("memory")), kind))
    return tuple(found.values()) if told else None


def ecc(entry: Mapping[str, Any]) -> dict[str, int]:
    """What ECC memory reports; empty where there is none."""
    said = entry.get("ecc_state")
    if not isinstance(said, dict):
        return {}
    return {name: value for name in _ECC if (value := known(said.get(name))) is not None}


def read_sample(
    answer: Mapping[str, Any], sign: Sign, system: Memory
) -> tuple[dict[str, GpuSample], tuple[Problem, ...]]:
    """The GPUs by key (see `key`) from the answer of a serving child, and what went wrong.

    A GPU that is lost, gave no handle or did not tell its memory is a problem and has no sample. Where
    the whole answer is an error, the one problem has no `device`.
    """
    problem = failure(answer)
    if problem is not None:
        return {}, (problem,)
    samples: dict[str, GpuSample] = {}
    problems: list[Problem] = []
    for where, entry, wrong in _judged(answer, sign):
        if wrong is not None:
            problems.append(wrong)
        else:
            samples[where] = _sample(where, entry, system)
    return samples, tuple(problems)


def read_free(answer: Mapping[str, Any], sign: Sign, system: Memory) -> tuple[dict[str, int], tuple[Problem, ...]]:
    """Free bytes by GPU from the answer of a serving child, and what went wrong."""
    samples, problems = read_sample(answer, sign, system)
    return {where: s.memory_free for where, s in samples.items() if s.memory_free is not None}, problems


def _judged(answer: Mapping[str, Any], sign: Sign) -> Iterator[tuple[str, Mapping[str, Any], Problem | None]]:
    found = entries(answer)
    for entry in found:
        where = key(entry, sign, len(found))
        yield where, entry, failure(entry, f"GPU {where}", where) or lost(entry, where) or silent(entry, where)


def _sample(where: str, entry: Mapping[str, Any], system: Memory) -> GpuSample:
    memory: Mapping[str, int] = device_memory(entry) or {}
    if not memory and is_unified(entry):
        memory = {"total": system.total, "free": max(system.available - reserve(system.total), 0)}
    reasons = known(entry.get("clock_reasons"))
    return GpuSample(
        pci=where,
        memory_total=memory.get("total"),
        memory_used=memory.get("used"),
        memory_reserved=memory.get("reserved"),
        memory_free=memory.get("free"),
        utilisation=percent(entry.get("utilisation")),
        memory_utilisation=percent(entry.get("memory_utilisation")),
        temperature_c=scaled(entry.get("temperature"), 1),
        power_w=scaled(entry.get("power_mw"), 1000),
        power_limit_w=scaled(entry.get("power_limit_mw"), 1000) or None,
        throttled_by=None if reasons is None else throttles(reasons),
        idle=None if reasons is None else bool(reasons & IDLE),
        pcie_generation=known(entry.get("pcie_generation_now")) or None,
        pcie_width=known(entry.get("pcie_width_now")) or None,
        processes=processes(entry),
        ecc=ecc(entry),
    )
