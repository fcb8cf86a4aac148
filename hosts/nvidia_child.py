"""NVML through `pynvml`, in a process that may hang or crash alone. Started by `hosts.nvidia`.

Arguments: LIFETIME LIBRARY [--serve]. LIBRARY is where libnvidia-ml.so.1 was seen
("" if nowhere). Answers one JSON object: all facts once, or with `--serve` a short
one (memory only) for every line on standard input.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Callable
from typing import Any

from hosts.child_main import Answers, limit_lifetime, questions

_LIBRARY_NOT_FOUND = 12
_MEMORY_V1_INSTEAD = {2, 13, 25}  # invalid argument, function not found, argument version mismatch
_NOT_SUPPORTED = 3


class Reader:
    """Calls of one handle, each of which may fail without taking the others along."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.nvml = nvml
        self.handle = handle
        self.errors: dict[str, int | str] = {}

    def get(self, field: str, call: str, *arguments: Any) -> Any:
        """`nvml.<call>(handle, ...)`, or None with the reason in `errors`."""
        try:
            return getattr(self.nvml, call)(self.handle, *arguments)
        except self.nvml.NVMLError as error:
            self.errors[field] = error.value
        except (self.nvml.NVMLLibraryMismatchError, AttributeError) as error:
            # not an NVMLError: a symbol that this driver has only in another version,
            # or one that this version of the binding does not know
            self.errors[field] = type(error).__name__
        except (UnicodeDecodeError, ValueError) as error:
            self.errors[field] = type(error).__name__  # the driver returned bytes that are no text
        return None

    def memory(self) -> dict[str, int] | None:
        """Bytes as {total, free, used, reserved}; None where the driver has no such thing (unified memory).

        Version 1 counts what the driver reserves as used, so `reserved` is absent then.
        """
        info = self.get("memory", "nvmlDeviceGetMemoryInfo", self.nvml.nvmlMemory_v2)
        if info is not None:
            return {"total": info.total, "free": info.free, "used": info.used, "reserved": info.reserved}
        if self.errors["memory"] not in _MEMORY_V1_INSTEAD | {_NOT_SUPPORTED}:
            return None
        info = self.get("memory", "nvmlDeviceGetMemoryInfo")
        if info is None:
            return None
        del self.errors["memory"]
        return {"total": info.total, "free": info.free, "used": info.used}

    def temperature(self) -> int | None:
        """Degrees Celsius. Drivers before 13 lack the versioned call; drivers of CUDA 14 will lack the old one."""
        value: int | None = self.get("temperature", "nvmlDeviceGetTemperatureV", self.nvml.NVML_TEMPERATURE_GPU)
        if value is None and "temperature" in self.errors:
            value = self.get("temperature", "nvmlDeviceGetTemperature", self.nvml.NVML_TEMPERATURE_GPU)
            if value is not None:
                del self.errors["temperature"]
        return value

    def bus(self) -> str | None:
        """The PCI address in NVML's spelling."""
        info = self.get("pci", "nvmlDeviceGetPciInfo")
        raw = None if info is None else info.busId
        return raw.decode("ascii", "replace") if isinstance(raw, bytes) else raw

    def processes(self) -> list[dict[str, int | None]] | None:
        """Who computes on it: {pid, memory}; the process ids are the host's."""
        found = self.get("processes", "nvmlDeviceGetComputeRunningProcesses")
        return None if found is None else [{"pid": p.pid, "memory": p.usedGpuMemory} for p in found]


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


def each(nvml: Any, read: Callable[[Reader], dict[str, Any]]) -> dict[str, Any]:
    """`read` for every GPU, in NVML's (= PCI) order; one that gives no handle is an entry with an error."""
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        return failure(error)
    found = []
    for index in range(count):
        try:
            reader = Reader(nvml, nvml.nvmlDeviceGetHandleByIndex(index))
        except nvml.NVMLError as error:
            found.append({"index": index, **failure(error)})
            continue
        found.append({"index": index, **read(reader), "errors": reader.errors})
    return {"gpus": found}


def everything(reader: Reader) -> dict[str, Any]:
    """All that the facts hold about one GPU, in NVML's own units."""
    utilisation = reader.get("utilisation", "nvmlDeviceGetUtilizationRates")
    return {
        "pci": reader.bus(),
        "name": reader.get("name", "nvmlDeviceGetName"),
        "uuid": reader.get("uuid", "nvmlDeviceGetUUID"),
        "capability": reader.get("capability", "nvmlDeviceGetCudaComputeCapability"),
        "memory": reader.memory(),
        "cores": reader.get("cores", "nvmlDeviceGetNumGpuCores"),
        "minor": reader.get("minor", "nvmlDeviceGetMinorNumber"),
        "utilisation": None if utilisation is None else utilisation.gpu,
        "temperature": reader.temperature(),
        "power_mw": reader.get("power", "nvmlDeviceGetPowerUsage"),
        "power_limit_mw": reader.get("power_limit", "nvmlDeviceGetEnforcedPowerLimit"),
        "clock_reasons": reader.get("clock_reasons", "nvmlDeviceGetCurrentClocksEventReasons"),
        # the current generation drops to 1 when the GPU idles: only the maximum says something
        "pcie_generation": reader.get("pcie_generation", "nvmlDeviceGetMaxPcieLinkGeneration"),
        "pcie_width": reader.get("pcie_width", "nvmlDeviceGetMaxPcieLinkWidth"),
        "processes": reader.processes(),
    }


def memory_only(reader: Reader) -> dict[str, Any]:
    """What changes while engines run."""
    return {"pci": reader.bus(), "memory": reader.memory()}


def report(nvml: Any) -> dict[str, Any]:
    """The one-time answer."""
    versions: dict[str, Any] = {}
    for field, call in (("driver", "nvmlSystemGetDriverVersion"), ("cuda", "nvmlSystemGetCudaDriverVersion_v2")):
        try:
            versions[field] = getattr(nvml, call)()
        except nvml.NVMLError as error:
            versions[f"{field}_error"] = error.value
    return {**versions, **each(nvml, everything)}


def main() -> None:
    """Entry point of the child."""
    lifetime, library = float(sys.argv[1]), sys.argv[2]
    limit_lifetime(lifetime)
    answers = Answers()
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError as error:
        answers.send({"error": "binding_missing", "text": str(error)})
        return
    serve = sys.argv[3:] == ["--serve"]
    failed = start(nvml, library)
    if not serve:
        answers.send(failed or report(nvml))
        return
    for _ in questions(lifetime):
        answers.send(failed or each(nvml, memory_only))


if __name__ == "__main__":
    main()
