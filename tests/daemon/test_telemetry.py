"""Samples of the host told by engine, and facts that they keep fresh."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from hosts.cgroups import ContainerSample
from hosts.facts import Accelerator, Cpu, HostFacts, Memory, Problem
from hosts.gpu_sample import GpuProcess, GpuSample
from hosts.gpu_users import GpuUser
from hosts.host_sample import HostSample
from hosts.roots import Roots
from hosts.telemetry import Sample
from orchestrator import telemetry
from orchestrator.clock import SystemClock
from orchestrator.host_watch import HostWatch
from orchestrator.telemetry import OTHERS, Watched, read
from orchestrator.timing import Timing
from tests.waiting import until

GIB = 1024**3
PCI = "0000:c6:00.0"
MINE, STRANGE = "a" * 64, "b" * 64
ENGINE = Watched("e" * 16, "qwen", 3, MINE, 4242)


def user(pid: int, memory: int | None, container: str | None = None, **changes: Any) -> GpuUser:
    return dataclasses.replace(GpuUser(PCI, pid, "x", memory, "compute", container, False), **changes)


def sample(*users: GpuUser, **changes: Any) -> Sample:
    gpu = GpuSample(
        PCI,
        memory_total=112 * GIB,
        memory_used=60 * GIB,
        memory_free=40 * GIB,
        utilisation=97,
        temperature_c=88.0,
        power_w=120.0,
        throttled_by=("software_thermal",),
        processes=tuple(GpuProcess(u.pid, u.memory, u.kind) for u in users),
    )
    return dataclasses.replace(
        Sample({}, (), {PCI: gpu}, HostSample(121 * GIB, 50 * GIB), users, {MINE: ContainerSample(7 * GIB, GIB)}),
        **changes,
    )


def test_memory_is_told_by_engine_and_the_rest_is_strangers() -> None:
    found = read(
        sample(
            user(1, 30 * GIB, MINE), user(2, 20 * GIB, MINE), user(3, 8 * GIB, STRANGE), user(4, None), user(5, GIB)
        ),
        [ENGINE],
    )
    (engine,) = found.engines
    assert (engine.deployment, engine.generation, engine.gpu_memory) == ("qwen", 3, {PCI: 50 * GIB})
    assert (engine.memory, engine.rss) == (7 * GIB, GIB)
    assert [(other.pid, other.memory) for other in found.others] == [(3, 8 * GIB), (5, GIB), (4, None)]
    (gpu,) = found.accelerators
    assert (gpu.others, gpu.memory_free, gpu.throttled_by) == (9 * GIB, 40 * GIB, ("software_thermal",))


def test_an_engine_that_holds_nothing_of_a_gpu_is_told_all_the_same() -> None:
    (engine,) = read(sample(containers={}), [ENGINE]).engines
    assert (engine.gpu_memory, engine.memory) == ({}, None)


def test_a_gpu_that_does_not_tell_its_processes_has_no_sum_of_strangers() -> None:
    one = sample()
    unknown = dataclasses.replace(one.gpus[PCI], processes=None)
    assert read(dataclasses.replace(one, gpus={PCI: unknown}), []).accelerators[0].others is None


def test_a_sample_stays_small() -> None:
    many = [user(pid, pid) for pid in range(1000)]
    found = read(sample(*many), [])
    assert len(found.others) == OTHERS
    assert found.others[0].pid == 999
    assert found.accelerators[0].others == sum(range(1000))


def test_what_did_not_change_is_kept_once() -> None:
    first = read(sample(user(1, GIB, MINE), user(2, GIB)), [ENGINE])
    second = read(sample(user(1, GIB, MINE), user(2, GIB)), [ENGINE], first)
    assert second == first
    assert second.others is first.others
    assert second.engines is first.engines
    assert second.host is first.host
    third = read(sample(user(1, 2 * GIB, MINE), user(2, GIB), user(3, 1)), [ENGINE], second)
    assert third.engines[0].gpu_memory == {PCI: 2 * GIB}
    assert third.others[0] is first.others[0]
    assert [other.pid for other in third.others] == [2, 3]


def test_problems_by_code() -> None:
    problems = (Problem("nvml_timeout", "nvidia", "x"), Problem("nvml_timeout", "nvidia", "y"))
    assert read(sample(problems=problems), []).problems == ("nvml_timeout",)


def test_a_sample_refreshes_the_facts_and_forgets_nothing() -> None:
    gpu = Accelerator("amd", None, "gfx1151", PCI, None, 1, 1, True, power_w=3.0, temperature_c=20.0)
    fresh = telemetry.refreshed(gpu, sample())
    assert (fresh.memory_free, fresh.utilisation, fresh.temperature_c, fresh.power_w) == (40 * GIB, 97, 88.0, 120.0)
    assert fresh.memory_total == 1
    assert telemetry.refreshed(gpu, Sample({})) is gpu
    silent = telemetry.refreshed(gpu, Sample({}, (), {PCI: GpuSample(PCI)}))
    assert (silent.memory_free, silent.power_w) == (1, None)


async def test_the_watch_keeps_the_last_samples_and_its_facts_fresh() -> None:
    facts = HostFacts("h", None, None, Cpu(None, "x86_64", 2), Memory(1, 1))
    watch = HostWatch(facts, Timing(telemetry_samples=3), Roots(), SystemClock())
    watch.watch(lambda: [dataclasses.replace(ENGINE, pid=1)])
    try:
        assert watch.telemetry() == []
        for _ in range(4):
            await watch.read()
        found = watch.telemetry()
        assert len(found) == 3
        assert [s.sequence for s in found] == sorted({s.sequence for s in found})
        assert found[-1].host is not None
        assert found[-1].host.memory_total > 1 << 28
        assert found[-1].engines[0].memory is None  # process 1 is in no such container
        assert watch.facts().memory.available > 1
        assert watch.telemetry(found[-2].sequence) == found[-1:]
        assert watch.telemetry(limit=2) == found[1:]
    finally:
        await watch.close()


async def test_a_reading_of_this_process_by_its_control_group(tmp_path: Path) -> None:
    """Told by a tree: a container of ours with a process in it."""
    for name, text in {
        "proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 400 kB\n",
        "proc/4242/cgroup": f"0::/machine.slice/libpod-{MINE}.scope/container\n",
        f"sys/fs/cgroup/machine.slice/libpod-{MINE}.scope/memory.current": "4096\n",
        f"sys/fs/cgroup/machine.slice/libpod-{MINE}.scope/memory.stat": "anon 1024\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    facts = HostFacts("h", None, None, Cpu(None, "x86_64", 2), Memory(1, 1))
    watch = HostWatch(facts, Timing(), Roots.under(tmp_path), SystemClock())
    watch.watch(lambda: [ENGINE])
    try:
        await watch.read()
        (engine,) = watch.telemetry()[0].engines
        assert (engine.memory, engine.rss) == (4096, 1024)
        await until(lambda: watch.facts().memory.available == 409600, 5.0)
    finally:
        await watch.close()
