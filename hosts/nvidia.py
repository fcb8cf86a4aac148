"""NVIDIA GPUs: what NVML says in a killable child, told as facts and problems."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from hosts import cdi, pci
from hosts.child import Child, ChildFailed, ChildTimeout
from hosts.facts import Accelerator, Memory, Problem
from hosts.found import Found
from hosts.nvidia_errors import DRIVER_HINT, NOT_SUPPORTED, VENDOR, about, failure, lost, meaning
from hosts.nvidia_sample import (
    Sign,
    address,
    device_memory,
    ecc,
    entries,
    is_unified,
    key,
    percent,
    processes,
    read_free,
    read_sample,
    scaled,
    throttles,
)
from hosts.reading import known, words
from hosts.roots import Roots
from hosts.system import reserve

__all__ = [
    "LIBRARY",
    "VENDOR",
    "Sign",
    "collect",
    "interpret",
    "look",
    "probe_again",
    "read_free",
    "read_sample",
    "start",
]

LIBRARY = "libnvidia-ml.so.1"

# CUDA cores of one multiprocessor, from the CUDA C++ programming guide (arithmetic throughput of FP32)
_CORES = {
    (6, 0): 64,
    (7, 0): 64,
    (7, 2): 64,
    (7, 5): 64,
    (8, 0): 64,
}
_CORES_ELSE = 128
_ECC = frozenset({"ecc", "ecc_errors", "remapped_rows", "retired_pages"})
_NUMBERS = ("cores", "minor", "pcie_generation", "pcie_width", "pcie_generation_now", "pcie_width_now")


def look(roots: Roots, devices: Sequence[pci.PciGpu], environ: Mapping[str, str]) -> Sign:
    """The cheap look that decides whether a child is started."""
    return Sign(
        gpus=tuple(gpu for gpu in devices if gpu.vendor == pci.NVIDIA),
        driver=os.path.isdir(roots.proc / "driver/nvidia")
        or os.path.lexists(roots.dev / "nvidiactl")
        or os.path.lexists(roots.dev / "dxg"),  # WSL2: the driver is the other system's
        library=pci.find_library(LIBRARY, roots, environ.get("LD_LIBRARY_PATH")),
    )


def start(sign: Sign, environ: Mapping[str, str], lifetime: float, *, serve: bool = False) -> Child:
    """The child that asks NVML. Raises `ChildFailed`."""
    arguments = [sign.library or "", *(["--serve"] if serve else [])]
    return Child("nvidia_child", arguments, environ, lifetime)


def collect(child: Child | ChildFailed | None, sign: Sign, roots: Roots, memory: Memory, end: float) -> Found:
    """What the child says until `end` (monotonic), or why it says nothing; None: it was not started."""
    if child is None:
        detail = f"no NVIDIA device on the PCI bus and no {LIBRARY}"
        return Found(problems=(Problem("no_device", VENDOR, detail, f"for an NVIDIA GPU: {DRIVER_HINT}"),))
    try:
        if isinstance(child, ChildFailed):
            raise child
        answer = child.collect(end)
    except ChildFailed as error:
        return Found(problems=(unanswered(error),))
    return interpret(answer, sign, cdi.read_specs(roots), memory)


def probe_again(roots: Roots, environ: Mapping[str, str], memory: Memory, deadline: float) -> Found | None:
    """The facts alone, in at most `deadline` seconds, for a host whose driver was absent or broken. Blocks.

    None where nothing could answer: a library without a driver or a GPU costs no process each time.
    """
    sign = look(roots, pci.gpus(roots), environ)
    if sign.library is None or not (sign.driver or sign.gpus):
        return None
    child: Child | ChildFailed
    try:
        child = start(sign, environ, deadline + 2.0)
    except ChildFailed as error:
        child = error
    return collect(child, sign, roots, memory, time.monotonic() + deadline)


def unanswered(error: ChildFailed) -> Problem:
    """The child hung, crashed or could not be started."""
    if isinstance(error, ChildTimeout):
        code, hint = meaning(10)
        text = f"the driver hangs: {error.summary()}"
    else:
        code, hint = "nvml_crashed", "run `nvidia-smi`; reinstall the driver"
        text = error.summary()
    return Problem(code, VENDOR, text, hint)


def interpret(answer: Mapping[str, Any], sign: Sign, specs: tuple[cdi.CdiSpec, ...], memory: Memory) -> Found:
    """The child's answer as accelerators and problems."""
    problem = failure(answer)
    if problem is not None:
        return Found(problems=(_explain_library(problem, sign),))
    found = entries(answer)
    if not found:
        detail = "the NVIDIA driver answers, but has no GPU"
        return Found(problems=(Problem("no_device", VENDOR, detail, "see `nvidia-smi` and `dmesg | grep NVRM`"),))
    accelerators: list[Accelerator] = []
    problems: list[Problem] = []
    for entry in found:
        where = key(entry, sign, len(found))
        if (problem := failure(entry, f"GPU {where}", where)) is not None:
            problems.append(problem)
            continue
        gpu, said = _gpu(entry, answer, sign, len(found), memory)
        problems.extend(said)
        named = _with_cdi(gpu, specs, alone=len(found) == 1)
        if not named.devices:
            problems.append(_no_cdi(gpu, specs))
        accelerators.append(named)
    return Found(tuple(accelerators), tuple(problems))


def _gpu(
    entry: Mapping[str, Any], answer: Mapping[str, Any], sign: Sign, count: int, system: Memory
) -> tuple[Accelerator, list[Problem]]:
    where = key(entry, sign, count)
    name = words(entry.get("name"))
    gone = lost(entry, where)
    problems = [gone] if gone is not None else []
    if address(entry, sign, count) is None:
        detail = f"{name or 'a GPU'} has no PCI address; it is known as {where}"
        problems.append(Problem("pci_unknown", VENDOR, detail, None, where))
    cuda = known(answer.get("cuda"))
    gpu = Accelerator(
        vendor=VENDOR,
        name=name,
        arch=_arch(entry.get("capability")),
        pci=where,
        uuid=words(entry.get("uuid")),
        memory_total=None,
        memory_free=None,
        unified=False,
        index=known(entry.get("index")) or 0,
        driver=words(answer.get("driver")),
        cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
        compute_units=_multiprocessors(entry),
        utilisation=percent(entry.get("utilisation")),
        temperature_c=scaled(entry.get("temperature"), 1),
        power_w=scaled(entry.get("power_mw"), 1000),
        power_limit_w=scaled(entry.get("power_limit_mw"), 1000) or None,
        details=_details(entry, gone=gone is not None),
    )
    return _with_memory(gpu, entry, system, gone=gone is not None), problems


def _with_memory(gpu: Accelerator, entry: Mapping[str, Any], system: Memory, *, gone: bool) -> Accelerator:
    memory = device_memory(entry)
    if memory is not None:
        # nothing may be planned into a GPU that is gone, however much it still claims to have
        free = None if gone else memory.get("free")
        details = {**gpu.details, **{f"memory_{k}": v for k, v in memory.items() if k in {"used", "reserved"}}}
        return dataclasses.replace(gpu, memory_total=memory["total"], memory_free=free, details=details)
    if gone or not is_unified(entry):
        return gpu
    kept = reserve(system.total)
    return dataclasses.replace(
        gpu,
        unified=True,
        memory_total=system.total,
        memory_free=max(system.available - kept, 0),
        details={**gpu.details, "reserve": kept, "usable": system.total - kept},
    )


def _details(entry: Mapping[str, Any], *, gone: bool) -> dict[str, object]:
    reasons, users = known(entry.get("clock_reasons")), processes(entry)
    said: dict[str, object] = {
        **{name: known(entry.get(name)) for name in _NUMBERS},
        "memory_utilisation": percent(entry.get("memory_utilisation")),
        "vbios": words(entry.get("vbios")),
        **_power_limits(entry),
        "ecc": entry["ecc"] if isinstance(entry.get("ecc"), bool) else None,
        "ecc_state": ecc(entry) or None,
        "throttled_by": None if reasons is None else list(throttles(reasons)),
        "processes": None
        if users is None
        else [{"pid": user.pid, "memory": user.memory, "kind": user.kind} for user in users],
        "unreadable": _unreadable(entry) or None,
    }
    return {"health": "lost" if gone else "ok", **{k: v for k, v in said.items() if v is not None}}


def _unreadable(entry: Mapping[str, Any]) -> list[str]:
    """Fields that should be there. That a GeForce has no ECC memory is nothing to tell."""
    errors = entry.get("errors")
    reasons = errors.items() if isinstance(errors, dict) else ()
    return sorted(str(name) for name, why in reasons if not (name in _ECC and why == NOT_SUPPORTED))


def _power_limits(entry: Mapping[str, Any]) -> dict[str, float | None]:
    """What the power limit is set to when nobody changes it, and between what it may be set."""
    limits = entry.get("power_range_mw")
    low, high = limits if isinstance(limits, list) and len(limits) == 2 else (None, None)
    return {
        "power_default_w": scaled(entry.get("power_default_mw"), 1000),
        "power_min_w": scaled(low, 1000),
        "power_max_w": scaled(high, 1000),
    }


def _capability(value: object) -> tuple[int, int] | None:
    if not isinstance(value, list) or len(value) != 2:
        return None
    major, minor = known(value[0]), known(value[1])
    return None if major is None or minor is None else (major, minor)


def _arch(value: object) -> str | None:
    capability = _capability(value)
    return f"sm_{capability[0]}{capability[1]}" if capability else None


def _multiprocessors(entry: Mapping[str, Any]) -> int | None:
    capability, cores = _capability(entry.get("capability")), known(entry.get("cores"))
    if capability is None or not cores:
        return None
    return cores // _CORES.get(capability, _CORES_ELSE)


def _with_cdi(gpu: Accelerator, specs: tuple[cdi.CdiSpec, ...], *, alone: bool) -> Accelerator:
    """The CDI name: by UUID where the spec has it, for indices move when a GPU is lost."""
    names = (*((gpu.uuid,) if gpu.uuid else ()), str(gpu.index), *(("all",) if alone else ()))
    found = cdi.device_name(specs, cdi.NVIDIA_KIND, names)
    if found is None:
        return gpu
    name, spec = found
    details = {**gpu.details, "cdi_spec": spec.path, "cdi_version": spec.version}
    return dataclasses.replace(gpu, devices=(name,), details=details)


def _no_cdi(gpu: Accelerator, specs: tuple[cdi.CdiSpec, ...]) -> Problem:
    stale = any(spec.kind == cdi.NVIDIA_KIND for spec in specs)
    return Problem(
        code="cdi_stale" if stale else "cdi_missing",
        vendor=VENDOR,
        detail=f"no CDI specification names GPU {gpu.pci}: containers cannot be given it",
        hint="install nvidia-container-toolkit and run `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`",
        device=gpu.pci,
    )


def _explain_library(problem: Problem, sign: Sign) -> Problem:
    if problem.code != "library_missing" or not sign.gpus:
        return problem
    gpu = sign.gpus[0]
    driver = f"bound to {gpu.driver}" if gpu.driver else "without a driver"
    detail = f"an NVIDIA GPU at {gpu.address} ({driver}), but no {LIBRARY}"
    return about(problem, detail)
