"""AMD GPUs again and again: counters, sensors, and who uses them, from the kernel's files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hosts import amd_metrics, amd_sysfs, drm, kfd
from hosts.amd_growth import Growth
from hosts.amd_metrics import Metrics
from hosts.bounded import Stuck, bounded
from hosts.drm_clients import Client, Clients, DrmClients
from hosts.facts import Accelerator, Memory, Problem
from hosts.gpu_sample import GpuProcess, GpuSample
from hosts.reading import read_bytes, read_text
from hosts.roots import Roots

VENDOR = amd_sysfs.VENDOR
_ASLEEP = frozenset({"suspended", "suspending"})


@dataclass(frozen=True, slots=True)
class _Raw:
    """What was read of one GPU; `held` is compute memory by process."""

    memory: drm.DrmMemory
    sensors: drm.DrmSensors
    metrics: Metrics
    held: Mapping[int, int]
    present: bool


class AmdSampler:
    """Readings of all AMD GPUs. Not for several threads at once."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._clients = DrmClients(roots)
        self._growth: dict[str, Growth] = {}
        self._before: dict[str, Metrics] = {}

    def sample(
        self, gpus: Sequence[Accelerator], system: Memory, seconds: float, now: float
    ) -> tuple[dict[str, GpuSample], tuple[Problem, ...]]:
        """The GPUs by PCI address, within `seconds`. What hangs is left out and said.

        Sensors ask the GPU's firmware and hang with it; counters and lists of processes are the
        driver's own, and are read again alone where sensors do not answer.
        """
        problems: list[Problem] = []
        found: Mapping[str, _Raw] = {}
        for sensors, share, key in ((True, 0.5, "amd-sample"), (False, 0.25, "amd-sample-calm")):
            try:
                found = bounded(
                    f"{key} {self._roots.sys}",
                    seconds * share,
                    lambda sensors=sensors: self._read(gpus, sensors=sensors),  # type: ignore[misc]
                )
                break
            except Stuck as error:
                hint = "look for amdgpu lines in `dmesg`; a reboot may be needed"
                if not problems:
                    problems.append(Problem(amd_sysfs.TIMEOUT, VENDOR, str(error), hint))
        try:
            # a look at an open file of the GPU takes the driver's locks
            clients = bounded(f"amd-clients {self._roots.proc}", seconds * 0.2, lambda: self._clients.read(now))
        except Stuck:
            clients = {}
        samples = {}
        pools = sum(gpu.unified and raw.present for gpu in gpus if (raw := found.get(gpu.pci)) is not None)
        for gpu in gpus:
            raw = found.get(gpu.pci)
            if raw is not None and raw.present:
                samples[gpu.pci] = self._sample(gpu, raw, system, clients, alone=pools == 1)
        return samples, tuple(problems)

    def _read(self, gpus: Sequence[Accelerator], *, sensors: bool) -> dict[str, _Raw]:
        held = kfd.processes(self._roots)
        found = {}
        for gpu in gpus:
            card, gpu_id = gpu.details.get("card"), gpu.details.get("gpu_id")
            mine = {pid: sizes[gpu_id] for pid, sizes in held.items() if isinstance(gpu_id, int) and gpu_id in sizes}
            if not isinstance(card, str):
                continue
            folder = self._roots.sys / "class/drm" / card / "device"
            awake = sensors and not _asleep(folder)
            found[gpu.pci] = _Raw(
                memory=drm.read_memory(folder),
                sensors=drm.read_sensors(folder) if awake else drm.DrmSensors(),
                metrics=amd_metrics.parse(read_bytes(folder / "gpu_metrics", 65536)) if awake else Metrics(),
                held=mine,
                present=folder.is_dir(),
            )
        return found

    def _sample(self, gpu: Accelerator, raw: _Raw, system: Memory, clients: Clients, *, alone: bool) -> GpuSample:
        held = sum(raw.held.values()) if isinstance(gpu.details.get("gpu_id"), int) else None
        growth = self._grown(gpu, raw, system, held) if gpu.unified and alone else None
        room = amd_sysfs.budget(unified=gpu.unified, memory=raw.memory, kfd_used=held, system=system, growth=growth)
        before = self._before.get(gpu.pci)
        if raw.metrics.held_back:
            self._before[gpu.pci] = raw.metrics
        return GpuSample(
            pci=gpu.pci,
            memory_total=None if room is None else room.total,
            memory_used=None if room is None else room.used,
            memory_free=None if room is None else room.free,
            utilisation=raw.sensors.busy,
            temperature_c=raw.sensors.temperature,
            power_w=raw.sensors.power,
            power_limit_w=raw.sensors.power_limit,
            clock_mhz=raw.metrics.clock_mhz,
            throttled_by=amd_metrics.throttled(raw.metrics, before),
            idle=None if raw.sensors.busy is None else raw.sensors.busy == 0,
            processes=_processes(gpu, raw.held, clients),
        )

    def _grown(self, gpu: Accelerator, raw: _Raw, system: Memory, held: int | None) -> int | None:
        counted = max(raw.memory.gtt_used or 0, held or 0)
        return self._growth.setdefault(gpu.pci, Growth()).used(system, counted, computing=bool(raw.held))


def _asleep(folder: Path) -> bool:
    """A card that sleeps is not woken to be asked how warm it is."""
    return read_text(folder / "power/runtime_status", 64) in _ASLEEP


def _processes(gpu: Accelerator, held: Mapping[int, int], clients: Clients) -> tuple[GpuProcess, ...]:
    """Those that compute, and those that draw. What both counters know of one process is the same memory."""
    sizes = {pid: _size(gpu, of[gpu.pci]) for pid, of in clients.items() if gpu.pci in of}
    found = [GpuProcess(pid, max(size, sizes.pop(pid, 0)), "compute") for pid, size in held.items()]
    return (*found, *(GpuProcess(pid, size, "graphics") for pid, size in sizes.items()))


def _size(gpu: Accelerator, client: Client) -> int:
    """Of a card its own memory; of an APU both pools are system memory, or carved out of it."""
    return client.vram + client.gtt if gpu.unified else client.vram


def read_users(roots: Roots, gpus: Sequence[Accelerator]) -> dict[str, tuple[GpuProcess, ...]]:
    """Who uses which GPU, once. Looks at every open file of every process: some ten milliseconds."""
    clients: Clients = DrmClients(roots).read(0.0)
    held = kfd.processes(roots)
    found = {}
    for gpu in gpus:
        gpu_id = gpu.details.get("gpu_id")
        mine = {pid: sizes[gpu_id] for pid, sizes in held.items() if isinstance(gpu_id, int) and gpu_id in sizes}
        found[gpu.pci] = _processes(gpu, mine, clients)
    return found
