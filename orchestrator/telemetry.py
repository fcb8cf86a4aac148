"""What the host and its engines do, sample by sample: readings of the host told by engine instead of by container.

Pure: values in, values out. Taking the readings and keeping them is `host_watch`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TypeVar

from hosts.facts import Accelerator
from hosts.gpu_sample import GpuSample
from hosts.gpu_users import GpuUser
from hosts.host_sample import HostSample
from hosts.ring import Entry
from hosts.telemetry import Sample
from orchestrator.deployment import Deployment

T = TypeVar("T")
OTHERS = 32
"""Processes that are no engines' which a sample keeps: what it takes in memory stays bounded."""


@dataclass(frozen=True, slots=True)
class Watched:
    """An engine whose use is told. `pid` is a process of its container, by the host's count."""

    id: str
    deployment: str
    generation: int
    container_id: str
    pid: int


@dataclass(frozen=True, slots=True)
class AcceleratorReading:
    """One GPU at one moment: bytes, percent, MHz, watts, degrees Celsius. Unknown is None.

    `others` are bytes that processes hold which are no engines of ours: desktops, games, other containers.
    `throttled_by` names what keeps the clock low; empty means nothing does.
    """

    pci: str
    memory_total: int | None
    memory_used: int | None
    memory_free: int | None
    others: int | None
    utilisation: int | None
    clock_mhz: int | None
    power_w: float | None
    power_limit_w: float | None
    temperature_c: float | None
    throttled_by: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class EngineReading:
    """One engine at one moment, in bytes: `gpu_memory` by PCI address, `memory` what its container is charged
    for on the host (the page cache of its weights included), `rss` the part of it that is no file's, `peak` the most
    that its processes had resident."""

    id: str
    deployment: str
    generation: int
    gpu_memory: Mapping[str, int]
    memory: int | None
    rss: int | None
    peak: int | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """The host at one moment. `others` are the processes on GPUs that are no engines', the largest first."""

    host: HostSample | None
    accelerators: tuple[AcceleratorReading, ...] = ()
    engines: tuple[EngineReading, ...] = ()
    others: tuple[GpuUser, ...] = ()
    problems: tuple[str, ...] = ()
    """Codes of what could not be read this time."""


@dataclass(frozen=True, slots=True)
class TelemetryView:
    """One sample. `sequence` grows until the machine boots anew; `at` are Unix seconds, `monotonic_s` the seconds
    of the clock that never jumps. `others` are processes on GPUs that are no engines of this host's."""

    sequence: int
    at: float
    monotonic_s: float
    host: HostSample | None
    accelerators: tuple[AcceleratorReading, ...] = ()
    engines: tuple[EngineReading, ...] = ()
    others: tuple[GpuUser, ...] = ()
    problems: tuple[str, ...] = ()


def watched(deployments: Iterable[Deployment]) -> list[Watched]:
    """The engines that have a container with a process in it."""
    return [
        Watched(e.id, e.deployment, e.generation, e.container_id, e.pid)
        for d in deployments
        for e in d.live()
        if e.container_id is not None and e.pid is not None
    ]


def read(sample: Sample, engines: Sequence[Watched], before: Reading | None = None) -> Reading:
    """A sample told by engine. Parts that are as `before` are taken from there, for they need no memory then."""
    ours = {e.container_id for e in engines}
    strangers = tuple(user for user in sample.users if user.container not in ours)
    others = tuple(sorted(strangers, key=lambda user: -(user.memory or 0))[:OTHERS])
    reading = Reading(
        host=sample.host,
        accelerators=tuple(_accelerator(one, strangers) for one in sample.gpus.values()),
        engines=tuple(_engine(engine, sample) for engine in engines),
        others=others,
        problems=tuple(dict.fromkeys(problem.code for problem in sample.problems)),
    )
    return reading if before is None else _shared(reading, before)


def view(entry: Entry[Reading]) -> TelemetryView:
    """A sample as it is shown."""
    r = entry.value
    at, monotonic = round(entry.wall, 3), round(entry.at, 3)
    return TelemetryView(entry.sequence, at, monotonic, r.host, r.accelerators, r.engines, r.others, r.problems)


def refreshed(gpu: Accelerator, sample: Sample) -> Accelerator:
    """The facts of a GPU with what a sample says of it. Free memory that could not be read stays what it was:
    plans count on it. A sensor that could not be read is unknown."""
    one = sample.gpus.get(gpu.pci)
    if one is None:
        return gpu
    return replace(
        gpu,
        memory_free=gpu.memory_free if one.memory_free is None else one.memory_free,
        utilisation=one.utilisation,
        temperature_c=one.temperature_c,
        power_w=one.power_w,
    )


def _accelerator(one: GpuSample, strangers: Sequence[GpuUser]) -> AcceleratorReading:
    told = [user.memory for user in strangers if user.pci == one.pci and user.memory is not None]
    return AcceleratorReading(
        pci=one.pci,
        memory_total=one.memory_total,
        memory_used=one.memory_used,
        memory_free=one.memory_free,
        others=None if one.processes is None else sum(told),
        utilisation=one.utilisation,
        clock_mhz=one.clock_mhz,
        power_w=one.power_w,
        power_limit_w=one.power_limit_w,
        temperature_c=one.temperature_c,
        throttled_by=one.throttled_by,
    )


def _engine(engine: Watched, sample: Sample) -> EngineReading:
    held: dict[str, int] = {}
    for user in sample.users:
        if user.container == engine.container_id and user.memory is not None:
            held[user.pci] = held.get(user.pci, 0) + user.memory
    container = sample.containers.get(engine.container_id)
    return EngineReading(
        id=engine.id,
        deployment=engine.deployment,
        generation=engine.generation,
        gpu_memory=held,
        memory=None if container is None else container.memory,
        rss=None if container is None else container.rss,
        peak=None if container is None else container.peak,
    )


def _shared(reading: Reading, before: Reading) -> Reading:
    """Equal parts of two readings as one."""
    return Reading(
        host=before.host if before.host == reading.host else reading.host,
        accelerators=_same(reading.accelerators, before.accelerators),
        engines=_same(reading.engines, before.engines),
        others=_same(reading.others, before.others),
        problems=_same(reading.problems, before.problems),
    )


def _same(now: tuple[T, ...], before: tuple[T, ...]) -> tuple[T, ...]:
    if now == before:
        return before
    pairs = zip_longest(now, before[: len(now)])
    return tuple(old if old is not None and old == new else new for new, old in pairs)
