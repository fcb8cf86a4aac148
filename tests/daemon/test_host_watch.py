"""What the daemon knows of its host stays known, and is looked at again when it may have changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from hosts.facts import HostFacts, Problem
from orchestrator import host_watch
from orchestrator.host_watch import HostWatch
from orchestrator.timing import Timing
from tests.daemon.test_devices import ONE, facts, gpu, radeon
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
