"""What amdsmi adds to the kernel's own files: a name, a sensor here and there. Never memory that sysfs told.

Only where sysfs shows no GPU at all (a sandbox without /sys/class/kfd) does amdsmi
alone describe one, and a problem says so.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hosts import amd_sysfs, drm, pci
from hosts.child import Child, ChildFailed, ChildTimeout
from hosts.facts import Accelerator, Memory, Problem
from hosts.found import Found
from hosts.kfd import APUS
from hosts.reading import known, words

VENDOR = amd_sysfs.VENDOR
LIBRARY = "libamd_smi.so"
DEADLINE = 3.0  # sysfs has said all that matters by then
_OPTIONAL = "optional: names and sensors only; install ROCm's amd-smi-lib to have them"
_PROBLEMS: Mapping[object, tuple[str, str]] = {
    "KeyError": ("amd_smi_missing", _OPTIONAL),
    "OSError": ("amd_smi_missing", _OPTIONAL),
    "ImportError": ("amd_smi_missing", _OPTIONAL),
    "ModuleNotFoundError": ("amd_smi_missing", _OPTIONAL),
    "AttributeError": (
        "amd_smi_mismatch",
        "the Python module and ROCm's library differ: install the host's amd-smi-lib",
    ),
    10: ("no_permission", "the daemon's user must be in the groups that own /dev/kfd and /dev/dri/renderD*"),
    34: ("driver_not_loaded", "run `modprobe amdgpu`"),
}
# what amdsmi makes of a GPU without a serial number: equal on every machine of its kind
_ARCH = re.compile(r"gfx[0-9a-f]{3,5}")
_NO_SERIAL = re.compile(r".*-0000-1000-8000-0{12}")


def start(environ: Mapping[str, str], lifetime: float) -> Child:
    """The child that asks amdsmi. Raises `ChildFailed`."""
    return Child("amd_smi_child", (), environ, lifetime)


def unanswered(error: ChildFailed) -> Problem:
    """The child hung, crashed or could not be started."""
    if isinstance(error, ChildTimeout):
        return Problem("amd_smi_timeout", VENDOR, error.summary(), "look for amdgpu lines in `dmesg`")
    return Problem("amd_smi_crashed", VENDOR, error.summary(), "run `amd-smi list`")


def merge(answer: Mapping[str, Any], known_gpus: Sequence[Accelerator], system: Memory) -> Found:
    """The GPUs of sysfs with what amdsmi knows besides, and problems."""
    if (failed := _failure(answer)) is not None:
        return Found(tuple(known_gpus), (failed,))
    entries = [entry for entry in answer.get("gpus") or () if isinstance(entry, dict)]
    problems = _binding(answer)
    if not known_gpus:
        found = tuple(_alone(index, entry, system) for index, entry in enumerate(entries))
        return Found(found, (*problems, *(_no_sysfs(gpu) for gpu in found)))
    return Found(tuple(_add(gpu, _entry_of(gpu, entries, len(known_gpus))) for gpu in known_gpus), problems)


def _failure(answer: Mapping[str, Any]) -> Problem | None:
    value = answer.get("error")
    if value is None:
        return None
    known_code = isinstance(value, str | int) and value in _PROBLEMS
    code, hint = _PROBLEMS[value] if known_code else ("amd_smi_failed", "run `amd-smi list`")
    text = words(answer.get("text")) or "no text"
    detail = f"amdsmi finds no {LIBRARY}" if value == "KeyError" else f"amdsmi: {text} ({value})"
    return Problem(code, VENDOR, detail, hint)


def _binding(answer: Mapping[str, Any]) -> tuple[Problem, ...]:
    """The command answered because the module could not: said where the two do not fit each other."""
    binding = answer.get("binding")
    failed = _failure(binding) if isinstance(binding, Mapping) else None
    return (failed,) if failed is not None and failed.code != "amd_smi_missing" else ()


def _entry_of(gpu: Accelerator, entries: Sequence[dict[str, Any]], count: int) -> dict[str, Any]:
    for entry in entries:
        if pci.address(entry.get("bdf")) == gpu.pci:
            return entry
    if count == len(entries) == 1 and pci.address(entries[0].get("bdf")) is None:
        return entries[0]
    return {}


def _add(gpu: Accelerator, entry: Mapping[str, Any]) -> Accelerator:
    return dataclasses.replace(
        gpu,
        name=gpu.name or _name(entry.get("name")),
        driver=gpu.driver or words(entry.get("driver")),
        compute_units=gpu.compute_units or known(entry.get("compute_units")) or None,
        utilisation=_first(gpu.utilisation, _percent(entry.get("busy"))),
        temperature_c=_first(gpu.temperature_c, _celsius(entry.get("temperature"))),
        power_w=_first(gpu.power_w, _watts(entry.get("power"))),
        power_limit_w=_first(gpu.power_limit_w, _limit(entry.get("power_limit"))),
    )


def _alone(index: int, entry: Mapping[str, Any], system: Memory) -> Accelerator:
    arch = _arch(entry.get("arch"))
    sizes = (known(entry.get(key)) for key in ("vram_total", "vram_used", "gtt_total", "gtt_used"))
    memory = drm.DrmMemory(*sizes)
    unified = arch in APUS or amd_sysfs.is_apu(None, memory)
    room = amd_sysfs.budget(unified=unified, memory=memory, kfd_used=None, system=system)
    uuid = words(entry.get("uuid"))
    details: dict[str, object] = {"health": "ok", "source": "amdsmi"}
    if room is not None:
        details |= {"pool": room.pool, "memory_used": room.used, "reserve": room.reserve, "usable": room.usable}
    gpu = Accelerator(
        vendor=VENDOR,
        name=None,
        arch=arch,
        pci=pci.address(entry.get("bdf")) or f"{VENDOR}-{index}",
        uuid=None if uuid is None or _NO_SERIAL.fullmatch(uuid) else uuid,
        memory_total=room.total if room is not None else None,
        memory_free=room.free if room is not None else None,
        unified=unified,
        index=index,
        details=details,
    )
    return _add(gpu, entry)


def _no_sysfs(gpu: Accelerator) -> Problem:
    detail = f"amdsmi has GPU {gpu.pci}, but the kernel lists no KFD node and no DRM card"
    return Problem(
        "kfd_missing", VENDOR, detail, "containers cannot be given it: /dev/kfd and a render node are needed"
    )


def _name(value: object) -> str | None:
    """A market name; without an entry for the device libdrm's users get its number instead."""
    name = words(value)
    return None if name is None or name.startswith("0x") or not name.isprintable() else name


def _arch(value: object) -> str | None:
    """`gfx1151`; a library of another version may answer with anything."""
    arch = words(value)
    return arch if arch is not None and _ARCH.fullmatch(arch) else None


def _first(mine: Any, theirs: Any) -> Any:
    return theirs if mine is None else mine


def _percent(value: object) -> int | None:
    found = known(value)
    return found if found is not None and found <= 100 else None


def _celsius(value: object) -> float | None:
    """Degrees; some releases answer in thousandths."""
    found = known(value)
    return None if not found else found / 1000 if found > 1000 else float(found)


def _watts(values: object) -> float | None:
    """The first of several readings that says something; 0 W is what unsupported GPUs report."""
    for value in values if isinstance(values, list) else ():
        if found := known(value):
            return float(found)
    return None


def _limit(value: object) -> float | None:
    """Watts; releases from 7 on answer in microwatts. An APU's 0 is no limit known."""
    found = known(value)
    return None if not found else found / 1_000_000 if found >= 100_000 else float(found)
