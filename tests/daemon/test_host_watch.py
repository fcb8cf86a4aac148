"""What the daemon knows of its host stays known, and is looked at again when it may have changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from hosts.facts import HostFacts, Problem
from hosts.gpu_sample import GpuSample
from hosts.telemetry import Sample
from orchestrator import host_watch
from orchestrator.clock import SystemClock
from orchestrator.host_watch import HostWatch
from orchestrator.timing import Timing
from tests.daemon.gpu_scene import ONE, TWO, facts, gpu, radeon
from tests.hosts.trees import Tree, write


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "root").machine()


async def test_a_radeon_whose_files_hang_stays_known(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the host would look like one without a GPU, and the next model would run on the CPU."""
    stuck = Problem("amd_sysfs_timeout", "amd", "no answer", None)
    host = HostWatch(facts(radeon(ONE, 128)), Timing(), tree.roots)
    monkeypatch.setattr(host_watch, "probe", lambda *_, **__: facts(problems=(stuck,)))
    await host.probe()
    assert [a.pci for a in host.facts().accelerators] == [ONE]
    monkeypatch.setattr(host_watch, "probe", lambda *_, **__: facts())
    await host.probe()
    assert host.facts().accelerators == (), "it answered that there is none"
    await host.close()


async def test_cdi_files_that_come_later_are_seen(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    probes: list[int] = []

    def look(*_: object, **__: object) -> HostFacts:
        probes.append(1)
        return facts(gpu(ONE))

    monkeypatch.setattr(host_watch, "probe", look)
    host = await HostWatch.start(None, Timing(), tree.roots)
    await host.freshen()
    assert len(probes) == 1, "nothing has changed"
    write(tree.base / "etc/cdi/nvidia.yaml", "kind: nvidia.com/gpu\n")
    await host.freshen()
    await host.freshen()
    assert len(probes) == 2
    write(tree.base / "run/cdi/amd.json", "{}")
    await host.freshen()
    assert len(probes) == 3
    (tree.base / "etc/cdi/nvidia.yaml").unlink()
    await host.freshen()
    assert len(probes) == 4
    await host.close()


class Clock(SystemClock):
    def __init__(self) -> None:
        self.t = 100.0

    def now(self) -> float:
        return self.t


async def test_what_was_read_of_a_gpu_carries_its_age_and_is_marked_when_it_is_old(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, timing = Clock(), Timing()
    host = HostWatch(facts(gpu(ONE), gpu(TWO, 1)), timing, tree.roots, clock)
    sample = Sample({}, (), {ONE: GpuSample(ONE, memory_free=7)})
    monkeypatch.setattr(host._telemetry, "sample", lambda *_: sample)

    def shown() -> list[tuple[object, object]]:
        return [(a.details["age_s"], a.details["stale"]) for a in host.shown().accelerators]

    assert shown() == [(0.0, False), (0.0, False)]
    clock.t += timing.reading_stale
    assert shown() == [(15.0, False), (15.0, False)]
    clock.t += 0.1
    await host.read()
    assert shown() == [(0.0, False), (15.1, True)], "of the second there was no answer"
    assert [a.memory_free for a in host.shown().accelerators] == [7, 20], "the last that is known"
    assert "age_s" not in host.facts().accelerators[0].details, "plans are made of what does not change by itself"
    await host.close()
