"""NVIDIA GPUs: what NVML says in a killable child, told as facts and problems."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hosts import cdi, pci
from hosts.child import Child, ChildFailed, ChildTimeout
from hosts.facts import Accelerator, Memory, Problem
from hosts.found import Found
from hosts.reading import known, words
from hosts.roots import Roots
from hosts.system import reserve

VENDOR = "nvidia"
LIBRARY = "libnvidia-ml.so.1"
_LOST = {15, 16, 28}  # GPU is lost, reset required, GPU not found
_DRIVER_HINT = "install the NVIDIA driver; `nvidia-smi` must list the GPU"

# NVML's return codes: what they mean for an operator (code, hint). Others: nvml_failed.
_PROBLEMS: Mapping[object, tuple[str, str]] = {
    4: ("no_permission", "the daemon's user needs read and write access to /dev/nvidia*"),
    9: ("driver_not_loaded", "run `modprobe nvidia`, or reboot after installing the driver"),
    10: ("nvml_timeout", "look for NVRM or Xid lines in `dmesg`"),
    12: ("library_missing", _DRIVER_HINT),
    13: ("driver_too_old", "install a newer NVIDIA driver"),
    15: ("gpu_lost", "the GPU fell off the bus: check power and temperature, then reboot"),
    16: ("gpu_lost", "the GPU asks for a reset: `nvidia-smi --gpu-reset`, or reboot"),
    18: ("driver_mismatch", "the driver was upgraded under the running kernel module: reboot, or reload the module"),
    28: ("gpu_lost", "the GPU is gone from the bus: check power and seating, then reboot"),
    999: ("nvml_unknown", "look for NVRM or Xid lines in `dmesg`"),
    "binding_missing": ("binding_missing", "install the Python package nvidia-ml-py beside Outrider"),
}
# CUDA cores of one multiprocessor, from the CUDA C++ programming guide (arithmetic throughput of FP32)
_CORES = {
    (6, 0): 64,
    (7, 0): 64,
    (7, 2): 64,
    (7, 5): 64,
    (8, 0): 64,
}
_CORES_ELSE = 128
# bits of nvmlDeviceGetCurrentClocksEventReasons that mean "slower than it could be"
_THROTTLES = {
    0x4: "software_power_cap",
    0x8: "hardware_slowdown",
    0x20: "software_thermal",
    0x40: "hardware_thermal",
    0x80: "power_brake",
}


@dataclass(frozen=True, slots=True)
class Sign:
    """Why there may be an NVIDIA GPU: devices on the bus, the driver's nodes, its library."""

    gpus: tuple[pci.PciGpu, ...]
    driver: bool
    library: str | None

    def __bool__(self) -> bool:
        return bool(self.gpus or self.driver or self.library)


def look(roots: Roots, devices: Sequence[pci.PciGpu], environ: Mapping[str, str]) -> Sign:
    """The cheap look that decides whether a child is started."""
    return Sign(
        gpus=tuple(gpu for gpu in devices if gpu.vendor == pci.NVIDIA),
        driver=os.path.isdir(roots.proc / "driver/nvidia") or os.path.lexists(roots.dev / "nvidiactl"),
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
        return Found(problems=(Problem("no_device", VENDOR, detail, f"for an NVIDIA GPU: {_DRIVER_HINT}"),))
    try:
        if isinstance(child, ChildFailed):
            raise child
        answer = child.collect(end)
    except ChildFailed as error:
        return Found(problems=(unanswered(error),))
    return interpret(answer, sign, cdi.read_specs(roots), memory)


def unanswered(error: ChildFailed) -> Problem:
    """The child hung, crashed or could not be started."""
    if isinstance(error, ChildTimeout):
        code, hint = _PROBLEMS[10]
    else:
        code, hint = "nvml_crashed", "run `nvidia-smi`; reinstall the driver"
    return Problem(code, VENDOR, error.summary(), hint)


def interpret(answer: Mapping[str, Any], sign: Sign, specs: tuple[cdi.CdiSpec, ...], memory: Memory) -> Found:
    """The child's answer as accelerators and problems."""
    problem = failure(answer)
    if problem is not None:
        return Found(problems=(_explain_library(problem, sign),))
    entries = [entry for entry in answer.get("gpus") or () if isinstance(entry, dict)]
    if not entries:
        detail = "the NVIDIA driver answers, but has no GPU"
        return Found(problems=(Problem("no_device", VENDOR, detail, "see `nvidia-smi` and `dmesg | grep NVRM`"),))
    accelerators: list[Accelerator] = []
    problems: list[Problem] = []
    for position, entry in enumerate(entries):
        if (problem := failure(entry, f"GPU {position}")) is not None:
            problems.append(problem)
            continue
        gpu, about = _gpu(entry, answer, sign, len(entries), memory)
        problems.extend(about)
        named = _with_cdi(gpu, specs, alone=len(entries) == 1)
        if not named.devices:
            problems.append(_no_cdi(gpu, specs))
        accelerators.append(named)
    return Found(tuple(accelerators), tuple(problems))


def failure(answer: Mapping[str, Any], what: str | None = None) -> Problem | None:
    """The problem an answer (or one GPU's entry in it) reports, if it reports one."""
    value = answer.get("error")
    if value is None:
        return None
    code, hint = _PROBLEMS.get(value, ("nvml_failed", "run `nvidia-smi`"))
    text = words(answer.get("text")) or "no text"
    return Problem(code, VENDOR, f"{what or 'NVML'}: {text} ({value})", hint)


def device_memory(entry: Mapping[str, Any]) -> dict[str, int] | None:
    """The memory of one GPU's entry, or None where the driver has none to tell (unified, failed)."""
    memory = entry.get("memory")
    if not isinstance(memory, dict) or not known(memory.get("total")):
        return None
    return {key: size for key, value in memory.items() if (size := known(value)) is not None}


def is_unified(entry: Mapping[str, Any]) -> bool:
    """GB10, Thor and Orin share the host's memory: the calls are not supported, or say 0."""
    memory = entry.get("memory")
    if isinstance(memory, dict):
        return memory.get("total") == 0
    errors = entry.get("errors")
    return isinstance(errors, dict) and errors.get("memory") == 3


def address(entry: Mapping[str, Any], sign: Sign, count: int) -> str | None:
    """The PCI address of an entry; from the kernel's list if NVML does not say it (both are in bus order)."""
    index = known(entry.get("index")) or 0
    said = pci.address(entry.get("pci"))
    if said is None and len(sign.gpus) == count and index < count:
        return sign.gpus[index].address
    return said


def key(entry: Mapping[str, Any], sign: Sign, count: int) -> str:
    """What facts and samples know a GPU by: its address, or `nvidia-<index>` where there is none."""
    return address(entry, sign, count) or f"{VENDOR}-{known(entry.get('index')) or 0}"


def lost(entry: Mapping[str, Any], where: str) -> Problem | None:
    """Whether any call for this GPU answered that it is gone."""
    errors = entry.get("errors")
    for value in errors.values() if isinstance(errors, dict) else ():
        if value in _LOST:
            code, hint = _PROBLEMS[value]
            return Problem(code, VENDOR, f"GPU {where} is lost (NVML error {value})", hint)
    return None


def read_free(answer: Mapping[str, Any], sign: Sign, system: Memory) -> tuple[dict[str, int], tuple[Problem, ...]]:
    """Free bytes by GPU from the answer of a serving child, and what went wrong."""
    problem = failure(answer)
    if problem is not None:
        return {}, (problem,)
    entries = [entry for entry in answer.get("gpus") or () if isinstance(entry, dict)]
    free: dict[str, int] = {}
    problems: list[Problem] = []
    for entry in entries:
        where = key(entry, sign, len(entries))
        gone = failure(entry, f"GPU {where}") or lost(entry, where)
        if gone is not None:
            problems.append(gone)
        elif (memory := device_memory(entry)) is not None and "free" in memory:
            free[where] = memory["free"]
        elif is_unified(entry):
            free[where] = max(system.available - reserve(system.total), 0)
    return free, tuple(problems)


def _gpu(
    entry: Mapping[str, Any], answer: Mapping[str, Any], sign: Sign, count: int, system: Memory
) -> tuple[Accelerator, list[Problem]]:
    where = key(entry, sign, count)
    name = words(entry.get("name"))
    gone = lost(entry, where)
    problems = [gone] if gone is not None else []
    if address(entry, sign, count) is None:
        detail = f"{name or 'a GPU'} has no PCI address; it is known as {where}"
        problems.append(Problem("pci_unknown", VENDOR, detail, None))
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
        utilisation=known(entry.get("utilisation")),
        temperature_c=_scaled(entry.get("temperature"), 1),
        power_w=_scaled(entry.get("power_mw"), 1000),
        power_limit_w=_scaled(entry.get("power_limit_mw"), 1000) or None,
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
    details: dict[str, object] = {"health": "lost" if gone else "ok"}
    for key in ("cores", "minor", "pcie_generation", "pcie_width"):
        if (value := known(entry.get(key))) is not None:
            details[key] = value
    reasons = known(entry.get("clock_reasons"))
    if reasons is not None:
        details["throttled_by"] = [text for bit, text in _THROTTLES.items() if reasons & bit]
    processes = entry.get("processes")
    if isinstance(processes, list):
        details["processes"] = [
            {"pid": known(p.get("pid")), "memory": known(p.get("memory"))} for p in processes if isinstance(p, dict)
        ]
    errors = entry.get("errors")
    if isinstance(errors, dict) and errors:
        details["unreadable"] = sorted(errors)
    return details


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


def _scaled(value: object, by: int) -> float | None:
    found = known(value)
    return None if found is None else found / by


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
    )


def _explain_library(problem: Problem, sign: Sign) -> Problem:
    if problem.code != "library_missing" or not sign.gpus:
        return problem
    gpu = sign.gpus[0]
    driver = f"bound to {gpu.driver}" if gpu.driver else "without a driver"
    detail = f"an NVIDIA GPU at {gpu.address} ({driver}), but no {LIBRARY}"
    return dataclasses.replace(problem, detail=detail)
