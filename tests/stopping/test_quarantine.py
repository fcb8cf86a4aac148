"""A device that several engines could not leave is used again only when the last of them has."""

from __future__ import annotations

from pathlib import Path

from hosts.gpu_sample import GpuSample
from hosts.telemetry import Sample
from orchestrator.stopping.barrier import Look
from orchestrator.stopping.holders import Holder
from orchestrator.stopping.quarantine import ISSUE, Held, Quarantine
from tests.daemon.world import World

GPU = "0000:01:00.0"


async def test_two_engines_that_one_driver_holds(tmp_path: Path) -> None:
    world = await World.open(tmp_path)
    try:
        shown: dict[str, str] = {}
        left = {"c1": [Holder(11, "python3", state="D")], "c2": [Holder(22, "python3", state="D")]}
        sample = Sample({}, gpus={GPU: GpuSample(GPU)})

        def mark(now: object) -> None:
            shown.clear()
            shown.update(dict(now))  # type: ignore[call-overload]

        quarantine = Quarantine(world.issues, mark)
        for container, name in (("c1", "a-1"), ("c2", "b-1")):

            def look(_: Sample, container: str = container) -> Look:
                return Look(0.0, tuple(left[container]))

            quarantine.hold(Held(GPU, name, container, name[0], tuple(left[container]), look), {})
        (issue,) = [i for i in world.issues.list() if i.code == ISSUE]
        assert "held by a-1" in issue.text
        assert "held by b-1" in issue.text
        assert "11,22" in (issue.hint or "")

        left["c2"] = []
        quarantine.on_sample(sample)
        assert (quarantine.of("c1") != [], quarantine.of("c2")) == (True, [])
        assert list(shown) == [GPU], "the first engine still holds some of it"
        (issue,) = [i for i in world.issues.list() if i.code == ISSUE]
        assert "held by a-1" in issue.text
        assert "b-1" not in issue.text

        left["c1"] = []
        quarantine.on_sample(sample)
        assert shown == {}
        assert not world.issues.holds(ISSUE)
    finally:
        await world.close()
