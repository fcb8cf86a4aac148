"""One GPU as NVML tells it, call by call. Runs in the child (`hosts.nvidia_child`), never in the daemon.

Every call may fail alone. What a driver does not have at all is asked for once: a child that
serves for days must not ask a GeForce about its ECC memory every five seconds.
"""

from __future__ import annotations

from typing import Any

MEMORY_V1_INSTEAD = frozenset({2, 3, 13, 25})
"""Invalid argument, not supported, function not found, argument version mismatch: older drivers say any of these
to version 2 of the memory call. Version 1 may still answer."""
_UNSUPPORTED = frozenset({3, 13, 26})  # not supported, function not found, deprecated
_UNCORRECTED, _VOLATILE = 1, 0

Unsupported = dict[tuple[str, str], int | str]
"""(GPU, call) to the reason for which it is not asked again."""


class Reader:
    """Calls of one handle. `errors` holds, by field, why it is None."""

    def __init__(self, nvml: Any, handle: Any, gpu: str, unsupported: Unsupported) -> None:
        """`gpu` is whose entries in `unsupported` (kept by the caller) count."""
        self.nvml = nvml
        self.handle = handle
        self.gpu = gpu
        self.errors: dict[str, int | str] = {}
        self._unsupported = unsupported

    def get(self, field: str, call: str, *arguments: Any, variant: str = "") -> Any:
        """`nvml.<call>(handle, ...)`, or None with the reason in `errors`.

        `variant` tells calls of one function apart that may be supported apart.
        """
        known = self._unsupported.get((self.gpu, call + variant))
        if known is not None:
            self.errors[field] = known
            return None
        try:
            value = getattr(self.nvml, call)(self.handle, *arguments)
        except self.nvml.NVMLError as error:
            self._failed(field, call + variant, error.value, once=error.value in _UNSUPPORTED)
        except (self.nvml.NVMLLibraryMismatchError, AttributeError) as error:
            # not an NVMLError: a symbol that this driver has only in another version,
            # or one that this version of the binding does not know
            self._failed(field, call + variant, type(error).__name__, once=True)
        except (UnicodeDecodeError, ValueError, TypeError) as error:
            self._failed(field, call + variant, type(error).__name__, once=False)  # bytes that are no text
        else:
            self.errors.pop(field, None)
            return value
        return None

    def _failed(self, field: str, call: str, reason: int | str, *, once: bool) -> None:
        self.errors[field] = reason
        if once:
            self._unsupported[self.gpu, call] = reason

    def first(self, field: str, *calls: tuple[Any, ...]) -> Any:
        """The first of several calls (name, arguments...) that answers: newer drivers drop what older ones need.

        Where a call fails for another reason than that it is not there, the others are not tried.
        """
        for call, *arguments in calls:
            value = self.get(field, call, *arguments)
            reason = self.errors.get(field)
            if reason is None or (isinstance(reason, int) and reason not in MEMORY_V1_INSTEAD | _UNSUPPORTED):
                return value
        return None

    def memory(self) -> dict[str, int] | None:
        """Bytes as {total, free, used, reserved}; None where the driver has no such thing (unified memory).

        Version 1 counts what the driver reserves as used, so `reserved` is absent then.
        """
        info = self.get("memory", "nvmlDeviceGetMemoryInfo", self.nvml.nvmlMemory_v2, variant="_v2")
        if info is not None:
            return {"total": info.total, "free": info.free, "used": info.used, "reserved": info.reserved}
        if self.errors["memory"] not in MEMORY_V1_INSTEAD:
            return None
        info = self.get("memory", "nvmlDeviceGetMemoryInfo")
        return None if info is None else {"total": info.total, "free": info.free, "used": info.used}

    def temperature(self) -> int | None:
        """Degrees Celsius. Drivers before 13 lack the versioned call; drivers of CUDA 14 will lack the old one."""
        sensor = self.nvml.NVML_TEMPERATURE_GPU
        value: int | None = self.first(
            "temperature", ("nvmlDeviceGetTemperatureV", sensor), ("nvmlDeviceGetTemperature", sensor)
        )
        return value

    def clock_reasons(self) -> int | None:
        """Why the clocks are what they are, as bits. Drivers before 535 know the older name alone."""
        value: int | None = self.first(
            "clock_reasons",
            ("nvmlDeviceGetCurrentClocksEventReasons",),
            ("nvmlDeviceGetCurrentClocksThrottleReasons",),
        )
        return value

    def bus(self) -> str | None:
        """The PCI address in NVML's spelling."""
        info = self.get("pci", "nvmlDeviceGetPciInfo")
        raw = None if info is None else info.busId
        return raw.decode("ascii", "replace") if isinstance(raw, bytes) else raw

    def processes(self, kind: str) -> list[dict[str, int | None]] | None:
        """Who uses it: {pid, memory}; the process ids are the host's. `kind` is Compute or Graphics.

        The unversioned calls raise an error of their own kind with a driver that has version 2 only.
        """
        call = f"nvmlDeviceGet{kind}RunningProcesses"
        found = self.first("processes" if kind == "Compute" else "graphics", (call,), (f"{call}_v2",))
        return None if found is None else [{"pid": p.pid, "memory": p.usedGpuMemory} for p in found]

    def utilisation(self) -> tuple[int | None, int | None]:
        """Percent of time that the GPU, and its memory's controller, were busy."""
        rates = self.get("utilisation", "nvmlDeviceGetUtilizationRates")
        return (None, None) if rates is None else (rates.gpu, rates.memory)

    def ecc_mode(self) -> bool | None:
        """Whether ECC is on now; None where the GPU has none (GeForce)."""
        modes = self.get("ecc", "nvmlDeviceGetEccMode")
        return None if modes is None else bool(modes[0])

    def ecc(self) -> dict[str, int]:
        """What ECC memory has to report; empty where there is none."""
        found: dict[str, int] = {}
        errors = self.get("ecc_errors", "nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _VOLATILE)
        if errors is not None:
            found["uncorrected"] = errors
        rows = self.get("remapped_rows", "nvmlDeviceGetRemappedRows")
        if rows is not None:
            _, _, pending, failed = rows
            found |= {"remap_pending": int(bool(pending)), "remap_failed": int(bool(failed))}
        retired = self.get("retired_pages", "nvmlDeviceGetRetiredPagesPendingStatus")
        if retired is not None:
            found["retire_pending"] = int(bool(retired))
        return found
