"""What the machine does now: the reading that the daemon repeats every few seconds.

NVML is asked in one child that stays (`hosts.nvidia_serving`), since starting an interpreter each
time would cost about a hundredth of a core. It ends when its pipe closes, so none survives the daemon.
AMD's files are read by `hosts.amd_sample`, the machine's by `hosts.host_sample`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from hosts import amd_sysfs, gpu_users, nvidia
from hosts.amd_sample import AmdSampler
from hosts.cgroups import ContainerSample, container_memory
from hosts.facts import HostFacts, Memory, Problem
from hosts.gpu_sample import GpuSample
from hosts.gpu_users import GpuUser
from hosts.host_sample import HostSample, read_host
from hosts.nvidia_serving import RETRY, Serving
from hosts.roots import Roots
from hosts.system import read_memory

HOST = "host"
DEADLINE = 5.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading. What is unknown has no entry.

    `free` are bytes by PCI address, and of the system (`host`: MemAvailable); `gpus` the whole
    readings by the same addresses, `users` who is on them, `containers` the memory of the containers
    that were asked for. Memory that anybody on a GPU holds is not in its `free`, known by name or not.
    """

    free: Mapping[str, int]
    problems: tuple[Problem, ...] = ()
    gpus: Mapping[str, GpuSample] = field(default_factory=dict)
    host: HostSample | None = None
    users: tuple[GpuUser, ...] = ()
    containers: Mapping[str, ContainerSample] = field(default_factory=dict)


class Telemetry:
    """Reads again and again. One thread at a time is let in; `close` when done."""

    def __init__(
        self, roots: Roots | None = None, environ: Mapping[str, str] | None = None, retry: float = RETRY
    ) -> None:
        """`retry`: seconds before a driver that failed is asked again."""
        self._roots = roots or Roots()
        self._serving = Serving(self._roots, dict(os.environ if environ is None else environ), retry)
        self._amd = AmdSampler(self._roots)
        self._lock = threading.Lock()

    def sample(
        self, facts: HostFacts, deadline: float = DEADLINE, containers: Mapping[str, int] | None = None
    ) -> Sample:
        """The host and the GPUs in `facts`, at the latest after `deadline` seconds. Blocks.

        `containers` are those whose memory is wanted: full id to the host's id of a process in each.
        """
        end = time.monotonic() + deadline
        if not self._lock.acquire(timeout=max(deadline, 0.0)):
            return Sample({}, (Problem("telemetry_busy", None, "the reading before this one still goes on", None),))
        try:
            return self._sample(facts, end, containers or {})
        finally:
            self._lock.release()

    def close(self) -> None:
        """End the child."""
        with self._lock:
            self._serving.close()

    def _sample(self, facts: HostFacts, end: float, containers: Mapping[str, int]) -> Sample:
        system, problems = read_memory(self._roots)
        gpus, wrong = self._gpus(facts, system, end)
        free = {where: one.memory_free for where, one in gpus.items() if one.memory_free is not None}
        asked = {name: container_memory(self._roots, name, pid) for name, pid in containers.items()}
        return Sample(
            free={HOST: system.available, **free},
            problems=(*problems, *wrong),
            gpus=gpus,
            host=read_host(self._roots, system),
            users=tuple(
                u for where, one in gpus.items() for u in gpu_users.users(self._roots, where, one.processes or ())
            ),
            containers={name: one for name, one in asked.items() if one is not None},
        )

    def _gpus(self, facts: HostFacts, system: Memory, end: float) -> tuple[dict[str, GpuSample], tuple[Problem, ...]]:
        gpus: dict[str, GpuSample] = {}
        problems: tuple[Problem, ...] = ()
        theirs = [gpu for gpu in facts.accelerators if gpu.vendor == amd_sysfs.VENDOR]
        if theirs:
            now = time.monotonic()
            gpus, problems = self._amd.sample(theirs, system, (end - now) / 2, now)
        mine = {gpu.pci for gpu in facts.accelerators if gpu.vendor == nvidia.VENDOR}
        if mine:
            found, wrong = self._serving.sample(system, end)
            gpus |= {where: one for where, one in found.items() if where in mine}
            problems = (*problems, *wrong)
        return gpus, problems
