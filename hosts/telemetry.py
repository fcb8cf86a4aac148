"""How much memory is free now: the reading that the daemon repeats every few seconds.

NVML is asked in one child that stays (`hosts.nvidia_serving`), since starting an interpreter each
time would cost about a hundredth of a core. It ends when its pipe closes, so none survives the daemon.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from hosts import amd_sysfs, nvidia
from hosts.bounded import Stuck, bounded
from hosts.facts import Accelerator, HostFacts, Memory, Problem
from hosts.gpu_sample import GpuSample
from hosts.nvidia_serving import RETRY, Serving
from hosts.roots import Roots
from hosts.system import read_memory

HOST = "host"
DEADLINE = 5.0


@dataclass(frozen=True, slots=True)
class Sample:
    """Free bytes by PCI address, and of the system (`host`: MemAvailable). What is unknown has no entry.

    `gpus` are the whole readings by the same keys.
    """

    free: Mapping[str, int]
    problems: tuple[Problem, ...] = ()
    gpus: Mapping[str, GpuSample] = field(default_factory=dict)


class Telemetry:
    """Reads again and again. One thread at a time is let in; `close` when done."""

    def __init__(
        self, roots: Roots | None = None, environ: Mapping[str, str] | None = None, retry: float = RETRY
    ) -> None:
        """`retry`: seconds before a driver that failed is asked again."""
        self._roots = roots or Roots()
        self._serving = Serving(self._roots, dict(os.environ if environ is None else environ), retry)
        self._lock = threading.Lock()

    def sample(self, facts: HostFacts, deadline: float = DEADLINE) -> Sample:
        """The memory of the host and of the GPUs in `facts`, at the latest after `deadline` seconds. Blocks."""
        end = time.monotonic() + deadline
        with self._lock:
            system, problems = read_memory(self._roots)
            free = {HOST: system.available}
            gpus: dict[str, GpuSample] = {}
            mine = [gpu for gpu in facts.accelerators if gpu.vendor == nvidia.VENDOR]
            theirs = [gpu for gpu in facts.accelerators if gpu.vendor == amd_sysfs.VENDOR]
            for part in (
                self._amd(theirs, system, deadline / 2) if theirs else None,
                self._nvidia(mine, system, end) if mine else None,
            ):
                if part is not None:
                    free |= part.free
                    problems = (*problems, *part.problems)
                    gpus |= part.gpus
            return Sample(free, problems, gpus)

    def close(self) -> None:
        """End the child."""
        with self._lock:
            self._serving.close()

    def _amd(self, gpus: list[Accelerator], system: Memory, seconds: float) -> Sample:
        def read() -> dict[str, int | None]:
            return {gpu.pci: amd_sysfs.read_free(self._roots, gpu, system) for gpu in gpus}

        try:
            found = bounded(f"amd-memory {self._roots.sys}", seconds, read)
        except Stuck as error:
            return Sample({}, (Problem("amd_sysfs_timeout", amd_sysfs.VENDOR, str(error), "see `dmesg`"),))
        return Sample({where: size for where, size in found.items() if size is not None})

    def _nvidia(self, gpus: list[Accelerator], system: Memory, end: float) -> Sample:
        found, problems = self._serving.sample(system, end)
        known = {gpu.pci for gpu in gpus}
        mine = {where: one for where, one in found.items() if where in known}
        free = {where: one.memory_free for where, one in mine.items() if one.memory_free is not None}
        return Sample(free, problems, mine)
