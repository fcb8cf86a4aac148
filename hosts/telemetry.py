"""How much memory is free now: the reading that the daemon repeats every few seconds.

NVML is asked in one child that stays, since starting an interpreter each time
would cost about a hundredth of a core. It ends when its pipe closes, so none
survives the daemon, and it is replaced after any failure: a library that was
loaded before a driver upgrade would never work again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from hosts import amd_sysfs, nvidia, pci
from hosts.bounded import Stuck, bounded
from hosts.child import Child, ChildFailed
from hosts.facts import Accelerator, HostFacts, Memory, Problem
from hosts.roots import Roots
from hosts.system import read_memory

HOST = "host"
DEADLINE = 5.0
_LIFETIME = 60.0  # of one answer, should the daemon be gone while it is computed


@dataclass(frozen=True, slots=True)
class Sample:
    """Free bytes by PCI address, and of the system (`host`: MemAvailable). What is unknown has no entry."""

    free: Mapping[str, int]
    problems: tuple[Problem, ...] = ()


class Telemetry:
    """Reads again and again. One thread at a time is let in; `close` when done."""

    def __init__(self, roots: Roots | None = None, environ: Mapping[str, str] | None = None) -> None:
        self._roots = roots or Roots()
        self._environ = dict(os.environ if environ is None else environ)
        self._child: Child | None = None
        self._lock = threading.Lock()

    def sample(self, facts: HostFacts, deadline: float = DEADLINE) -> Sample:
        """The memory of the host and of the GPUs in `facts`, at the latest after `deadline` seconds. Blocks."""
        end = time.monotonic() + deadline
        with self._lock:
            system, problems = read_memory(self._roots)
            free = {HOST: system.available}
            mine = [gpu for gpu in facts.accelerators if gpu.vendor == nvidia.VENDOR]
            theirs = [gpu for gpu in facts.accelerators if gpu.vendor == amd_sysfs.VENDOR]
            for part in (
                self._amd(theirs, system, deadline / 2) if theirs else None,
                self._nvidia(mine, system, end) if mine else None,
            ):
                if part is not None:
                    free |= part.free
                    problems = (*problems, *part.problems)
            return Sample(free, problems)

    def close(self) -> None:
        """End the child."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None

    def _amd(self, gpus: list[Accelerator], system: Memory, seconds: float) -> Sample:
        def read() -> dict[str, int | None]:
            return {gpu.pci: amd_sysfs.read_free(self._roots, gpu, system) for gpu in gpus}

        try:
            found = bounded(f"amd-memory {self._roots.sys}", seconds, read)
        except Stuck as error:
            return Sample({}, (Problem("amd_sysfs_timeout", amd_sysfs.VENDOR, str(error), "see `dmesg`"),))
        return Sample({where: size for where, size in found.items() if size is not None})

    def _nvidia(self, gpus: list[Accelerator], system: Memory, end: float) -> Sample:
        sign = nvidia.look(self._roots, pci.gpus(self._roots), self._environ)
        try:
            if self._child is None:
                self._child = nvidia.start(sign, self._environ, _LIFETIME, serve=True)
            free, problems = nvidia.read_free(self._child.ask("memory", end), sign, system)
        except ChildFailed as error:
            free, problems = {}, (nvidia.unanswered(error),)
        if problems:
            self._drop()
        known = {gpu.pci for gpu in gpus}
        return Sample({where: size for where, size in free.items() if where in known}, problems)
