"""NVML's return codes: their names, and what each means for an operator.

The child reports the number (an `NVMLError` can be neither hashed nor compared with one), or the
name of an exception that is no `NVMLError`. Numbers and names are those of nvml.h.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from hosts.facts import Problem
from hosts.reading import words

VENDOR = "nvidia"
NAMES: Mapping[int, str] = {
    1: "Uninitialized",
    2: "InvalidArgument",
    3: "NotSupported",
    4: "NoPermission",
    5: "AlreadyInitialized",
    6: "NotFound",
    7: "InsufficientSize",
    8: "InsufficientPower",
    9: "DriverNotLoaded",
    10: "Timeout",
    11: "IrqIssue",
    12: "LibraryNotFound",
    13: "FunctionNotFound",
    14: "CorruptedInforom",
    15: "GpuIsLost",
    16: "ResetRequired",
    17: "OperatingSystem",
    18: "LibRmVersionMismatch",
    19: "InUse",
    20: "Memory",
    21: "NoData",
    22: "VgpuEccNotSupported",
    23: "InsufficientResources",
    24: "FreqNotSupported",
    25: "ArgumentVersionMismatch",
    26: "Deprecated",
    27: "NotReady",
    28: "GpuNotFound",
    29: "InvalidState",
    30: "ResetTypeNotSupported",
    999: "Unknown",
}
LOST = frozenset({15, 16, 28})
"""The GPU answers nothing more until it is reset or the machine boots again."""
NOT_SUPPORTED = 3
_SILENT = (10, 999)
DRIVER_HINT = "install the NVIDIA driver; `nvidia-smi` must list the GPU"
_LOG = "look for NVRM or Xid lines in `dmesg`"
_MEANINGS: Mapping[object, tuple[str, str]] = {
    4: ("no_permission", "the daemon's user needs read and write access to /dev/nvidia*"),
    8: ("nvml_power", "a power cable of the GPU is missing or loose"),
    9: ("driver_not_loaded", "run `modprobe nvidia`, or reboot after installing the driver"),
    10: ("nvml_timeout", _LOG),
    11: ("nvml_interrupts", f"the driver gets no interrupts from the GPU: {_LOG}; look at BIOS and kernel parameters"),
    12: ("library_missing", DRIVER_HINT),
    13: ("driver_too_old", "install a newer NVIDIA driver"),
    14: ("inforom_corrupted", "`nvidia-smi -q` names what is damaged; the GPU may need service"),
    15: ("gpu_lost", "the GPU fell off the bus: check power and temperature, then reboot"),
    16: ("gpu_lost", "the GPU asks for a reset: `nvidia-smi --gpu-reset`, or reboot"),
    17: ("nvml_blocked", "something keeps the daemon from the driver (cgroup, container, SELinux): run `nvidia-smi`"),
    18: (
        "driver_mismatch",
        "the driver was upgraded under the running kernel module: reboot, or reload the module"
        " (stop what uses the GPU, then `rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia && modprobe nvidia`)",
    ),
    20: ("nvml_no_memory", "the driver found no memory for itself: `free -h`"),
    28: ("gpu_lost", "the GPU is gone from the bus: check power and seating, then reboot"),
    999: ("nvml_unknown", _LOG),
    "binding_missing": ("binding_missing", "install the Python package nvidia-ml-py beside Outrider"),
}
_ELSE = ("nvml_failed", "run `nvidia-smi`")
CODES = frozenset(code for code, _ in _MEANINGS.values()) | {_ELSE[0], "nvml_crashed"}
"""Codes of problems that are about the driver as a whole where they name no GPU."""


def meaning(value: object) -> tuple[str, str]:
    """The code and hint for a return code (or the name of another failure)."""
    return _MEANINGS.get(value, _ELSE)


def failure(answer: Mapping[str, Any], what: str | None = None, device: str | None = None) -> Problem | None:
    """The problem an answer of the child (or one GPU's entry in it) reports, if it reports one."""
    value = answer.get("error")
    if value is None:
        return None
    if not isinstance(value, int | str) or isinstance(value, bool):
        value = "garbage"
    code, hint = meaning(value)
    name = NAMES.get(value) if isinstance(value, int) else None
    text = words(answer.get("text")) or "no text"
    return Problem(code, VENDOR, f"{what or 'NVML'}: {text[:300]} ({name or 'unknown code'}, {value})", hint, device)


def lost(entry: Mapping[str, Any], where: str) -> Problem | None:
    """Whether any call for this GPU answered that it is gone."""
    errors = entry.get("errors")
    for value in errors.values() if isinstance(errors, dict) else ():
        if isinstance(value, int) and value in LOST:
            code, hint = meaning(value)
            return Problem(code, VENDOR, f"GPU {where} is lost (NVML: {NAMES[value]}, {value})", hint, where)
    return None


def silent(entry: Mapping[str, Any], where: str) -> Problem | None:
    """Whether the GPU gave no answer about its memory in time, or none that means anything: a missed reading."""
    errors = entry.get("errors")
    value = errors.get("memory") if isinstance(errors, dict) else None
    if value not in _SILENT:
        return None
    code, hint = meaning(value)
    return Problem(code, VENDOR, f"GPU {where} does not tell its memory (NVML: {NAMES[value]}, {value})", hint, where)


def about(problem: Problem, detail: str) -> Problem:
    """The same problem in other words."""
    return dataclasses.replace(problem, detail=detail)
