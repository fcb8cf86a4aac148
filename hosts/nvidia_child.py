"""NVML through `pynvml`, in a process that may hang or crash alone. Started by `hosts.nvidia`.

Arguments: LIFETIME LIBRARY [--serve]. LIBRARY is where libnvidia-ml.so.1 was seen
("" if nowhere). Answers one JSON object: all facts once, or with `--serve` one for every line on
standard input: `sample` (what changes while engines run) or `memory` (of that, the memory alone).
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Callable
from typing import Any

from hosts.child_main import Answers, limit_lifetime, questions
from hosts.nvidia_reader import Reader, Unsupported

_LIBRARY_NOT_FOUND = 12
_MOST_GPUS = 64


def start(nvml: Any, library: str) -> dict[str, Any] | None:
    """Initialise NVML; None, or what to answer instead."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        if error.value != _LIBRARY_NOT_FOUND or not library.startswith("/"):
            return failure(error)
        return _start_from(nvml, library)
    return None


def _start_from(nvml: Any, library: str) -> dict[str, Any] | None:
    """The library lies where the loader does not look (WSL2, NixOS): glibc reuses one loaded by its path."""
    try:
        ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
        nvml.nvmlInit()
    except OSError as error:
        return {"error": _LIBRARY_NOT_FOUND, "text": str(error)}
    except nvml.NVMLError as error:
        return failure(error)
    return None


def failure(error: Any) -> dict[str, Any]:
    """An NVMLError as JSON. It is neither hashable nor comparable with numbers: only `.value` is used."""
    return {"error": error.value, "text": str(error)}


def each(nvml: Any, read: Callable[[Reader], dict[str, Any]], unsupported: Unsupported) -> dict[str, Any]:
    """`read` for every GPU, in NVML's (= PCI) order; one that gives no handle is an entry with an error.

    `unsupported` is what a serving child has found to be missing so far. It is kept by PCI address: indices
    move when a GPU is lost.
    """
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        return failure(error)
    found = []
    for index in range(min(count, _MOST_GPUS)):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:
            found.append({"index": index, **failure(error)})
            continue
        first = Reader(nvml, handle, f"index {index}", unsupported)
        bus = first.bus()
        reader = Reader(nvml, handle, bus or first.gpu, unsupported)
        reader.errors |= first.errors
        found.append({"index": index, "pci": bus, **read(reader), "errors": reader.errors})
    return {"gpus": found}


def everything(reader: Reader) -> dict[str, Any]:
    """All that the facts hold about one GPU, in NVML's own units."""
    return {
        "name": reader.get("name", "nvmlDeviceGetName"),
        "uuid": reader.get("uuid", "nvmlDeviceGetUUID"),
        "capability": reader.get("capability", "nvmlDeviceGetCudaComputeCapability"),
        "cores": reader.get("cores", "nvmlDeviceGetNumGpuCores"),
        "minor": reader.get("minor", "nvmlDeviceGetMinorNumber"),
        "vbios": reader.get("vbios", "nvmlDeviceGetVbiosVersion"),
        "power_default_mw": reader.get("power_default", "nvmlDeviceGetPowerManagementDefaultLimit"),
        "power_range_mw": reader.get("power_range", "nvmlDeviceGetPowerManagementLimitConstraints"),
        # the current generation drops to 1 when the GPU idles: only the maximum says something
        "pcie_generation": reader.get("pcie_generation", "nvmlDeviceGetMaxPcieLinkGeneration"),
        "pcie_width": reader.get("pcie_width", "nvmlDeviceGetMaxPcieLinkWidth"),
        "ecc": reader.ecc_mode(),
        **changing(reader),
    }


def changing(reader: Reader) -> dict[str, Any]:
    """What changes while engines run."""
    busy, memory_busy = reader.utilisation()
    return {
        "memory": reader.memory(),
        "utilisation": busy,
        "memory_utilisation": memory_busy,
        "temperature": reader.temperature(),
        "power_mw": reader.get("power", "nvmlDeviceGetPowerUsage"),
        "power_limit_mw": reader.get("power_limit", "nvmlDeviceGetEnforcedPowerLimit"),
        "clock_reasons": reader.clock_reasons(),
        "pcie_generation_now": reader.get("pcie_generation_now", "nvmlDeviceGetCurrPcieLinkGeneration"),
        "pcie_width_now": reader.get("pcie_width_now", "nvmlDeviceGetCurrPcieLinkWidth"),
        "processes": reader.processes("Compute"),
        "graphics": reader.processes("Graphics"),
        "ecc_state": reader.ecc(),
    }


def memory_only(reader: Reader) -> dict[str, Any]:
    """The memory alone."""
    return {"memory": reader.memory()}


def report(nvml: Any) -> dict[str, Any]:
    """The one-time answer."""
    versions: dict[str, Any] = {}
    for field, call in (("driver", "nvmlSystemGetDriverVersion"), ("cuda", "nvmlSystemGetCudaDriverVersion_v2")):
        try:
            versions[field] = getattr(nvml, call)()
        except nvml.NVMLError as error:
            versions[f"{field}_error"] = error.value
        except (UnicodeDecodeError, ValueError) as error:
            versions[f"{field}_error"] = type(error).__name__
    return {**versions, **each(nvml, everything, {})}


def load() -> Any:
    """The binding. Raises ImportError where it is not installed."""
    return importlib.import_module("pynvml")


def main() -> None:
    """Entry point of the child."""
    lifetime, library = float(sys.argv[1]), sys.argv[2]
    limit_lifetime(lifetime)
    answers = Answers()
    try:
        nvml = load()
    except ImportError as error:
        answers.send({"error": "binding_missing", "text": str(error)})
        return
    serve = sys.argv[3:] == ["--serve"]
    failed = start(nvml, library)
    if not serve:
        answers.send(failed or report(nvml))
        return
    unsupported: Unsupported = {}
    for question in questions(lifetime):
        read = memory_only if question == "memory" else changing
        answers.send(failed or each(nvml, read, unsupported))


if __name__ == "__main__":
    main()
