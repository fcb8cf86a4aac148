"""The observer's arithmetic where no such device is: GPUs of their own memory, unified memory, several of them.

Readings stand in for the host; the engine's own metrics come from a real socket server in `test_real.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from containers.spec import LogLine
from hosts.facts import Accelerator, Cpu, HostFacts, Memory
from orchestrator.clock import SystemClock
from orchestrator.deployment import Deployment
from orchestrator.engine import Engine
from orchestrator.engine_client import EngineUnreachable
from orchestrator.errors import EngineFailed
from orchestrator.measured import Measured
from orchestrator.measuring.ledger import Ledger
from orchestrator.measuring.observing import Observing
from orchestrator.plan import ExpectedMemory, Plan
from orchestrator.telemetry import EngineReading, TelemetryView
from orchestrator.timing import Timing
from orchestrator.views import State
from tests.daemon.world import a_plan, an_entry

GIB = 1 << 30
GPU = Accelerator(
    "nvidia", "RTX 3090", "sm_86", "0000:01:00.0", None, 24 * GIB, 20 * GIB, unified=False, driver="580.1",
    devices=("nvidia.com/gpu=0",),
)  # fmt: skip
APU = replace(
    GPU,
    vendor="amd",
    name="8060S",
    arch="gfx1151",
    pci="0000:c1:00.0",
    unified=True,
    driver=None,
    devices=("/dev/kfd",),
)


class Host:
    """What the test says of the host."""

    def __init__(self, *gpus: Accelerator) -> None:
        self.found = HostFacts(
            host="h", os=None, kernel=None, cpu=Cpu("c", "x86_64", 8), memory=Memory(64 * GIB, 32 * GIB),
            accelerators=gpus,
        )  # fmt: skip
        self.reading: EngineReading | None = None

    def facts(self) -> HostFacts:
        return self.found

    def telemetry(self, since: int = 0, limit: int | None = None) -> Sequence[TelemetryView]:
        return [] if self.reading is None else [TelemetryView(1, 0.0, 0.0, None, engines=(self.reading,))]


class Logs:
    """In Podman's place: one engine's log."""

    async def logs(self, container: str, *, tail: int | None, follow: bool) -> AsyncIterator[LogLine]:
        yield LogLine("stderr", "load_tensors:        CUDA0 model buffer size = 15210.32 MiB")


class Silent:
    """An engine that does not answer."""

    async def __aenter__(self) -> Silent:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def get(self, path: str, *, timeout: float) -> Any:
        raise EngineUnreachable("silent")


class Place:
    """An observer, one engine, and what is read of it."""

    def __init__(self, ledger: Ledger, host: Host, plan: Plan) -> None:
        self.host, self.ledger = host, ledger
        self.deployment = Deployment(an_entry(), "h")
        self.add(plan)
        podman: Any = Logs()
        client: Any = lambda engine: Silent()  # noqa: E731
        self.observing = Observing(
            ledger, host=host, podman=podman, clock=SystemClock(), timing=Timing(), client=client
        )

    def add(self, plan: Plan, generation: int = 1) -> Engine:
        self.engine = Engine(f"e{generation}", "m", generation, plan, "k", None, None, 0.0, container_id="c")
        self.engine.state, self.engine.load_s = State.READY, 12.5
        self.deployment.engines, self.deployment.serving = [self.engine], generation
        return self.engine

    async def see(self, gpu: dict[str, int], *, rss: int | None = None, peak: int | None = None) -> Measured:
        self.host.reading = EngineReading(
            self.engine.id, "m", self.engine.generation, gpu, memory=None, rss=rss, peak=peak
        )
        await self.observing.look([self.deployment])
        return self.observing.known


def on(gpu: Accelerator, *, total: int = 20 * GIB, correction: int = 0, margin: int = GIB) -> Plan:
    """A plan for this GPU that expects so many bytes, of which some are a margin and some were learned before."""
    memory = ExpectedMemory(total, 0, 0, 0, 0, total, None, margin=margin, correction=correction)
    return replace(a_plan(devices=gpu.devices), expected_memory=memory)


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    opened = await Ledger.open(tmp_path / "m.db")
    yield opened
    await opened.close()


async def test_a_gpu_of_its_own(ledger: Ledger) -> None:
    place = Place(ledger, Host(GPU), on(GPU))
    (first,) = (await place.see({GPU.pci: 21 * GIB}, rss=3 * GIB)).memory.items()
    assert (first[0].arch, first[1].bytes, first[1].starts) == ("sm_86", 2 * GIB, 1)  # beyond 19 GiB that were likely
    assert place.engine.observed == 21 * GIB
    assert place.engine.printed == {"weights": round(15210.32 * (1 << 20))}
    assert (await place.see({GPU.pci: 22 * GIB})).memory[first[0]].bytes == 3 * GIB  # it grew while it served
    assert (await place.see({GPU.pci: 18 * GIB})).memory[first[0]].bytes == 3 * GIB  # the peak is what counts
    assert place.observing.known.load_s[first[0]] == 12.5


async def test_the_fullest_of_several_devices(ledger: Ledger) -> None:
    second = replace(GPU, pci="0000:02:00.0", devices=("nvidia.com/gpu=1",))
    plan = replace(on(GPU), devices=(*GPU.devices, *second.devices))
    place = Place(ledger, Host(GPU, second), plan)
    known = await place.see({GPU.pci: 18 * GIB, second.pci: 20 * GIB})
    assert [r.bytes for r in known.memory.values()] == [GIB]


async def test_unified_memory_has_the_process_as_well(ledger: Ledger) -> None:
    place = Place(ledger, Host(APU), on(APU))
    known = await place.see({APU.pci: 18 * GIB}, rss=2 * GIB)
    assert [(ran.arch, r.bytes) for ran, r in known.memory.items()] == [("gfx1151", GIB)]


async def test_what_was_corrected_before_is_no_forecast(ledger: Ledger) -> None:
    """The residual is of the forecast itself: else it would be learned away, and come back, at each other start."""
    place = Place(ledger, Host(GPU), on(GPU, total=22 * GIB, correction=2 * GIB))
    known = await place.see({GPU.pci: 21 * GIB})
    assert [r.bytes for r in known.memory.values()] == [2 * GIB]


async def test_a_gpu_that_says_nothing_teaches_nothing(ledger: Ledger) -> None:
    place = Place(ledger, Host(GPU), on(GPU))
    known = await place.see({})
    assert (len(known.memory), len(known.load_s)) == (0, 1)
    assert place.engine.observed is None
    known = await place.see({GPU.pci: 20 * GIB})  # its driver was slow to tell
    assert [r.bytes for r in known.memory.values()] == [GIB]


@pytest.mark.parametrize("how", ["failed", "verdict"])
async def test_an_engine_that_ended_badly_says_nothing_of_memory(ledger: Ledger, how: str) -> None:
    place = Place(ledger, Host(GPU), on(GPU))
    assert (await place.see({GPU.pci: 23 * GIB})).memory
    if how == "failed":
        place.engine.move(State.FAILED)
    else:
        place.engine.verdict = EngineFailed("memory_guard", "memory ran short")
    known = await place.see({GPU.pci: 23 * GIB})
    assert not known.memory
    assert len(known.load_s) == 1
    place.add(on(GPU), generation=2)
    assert [r.bytes for r in (await place.see({GPU.pci: 20 * GIB})).memory.values()] == [GIB]


async def test_another_driver_starts_anew_and_the_old_one_is_not_lost(ledger: Ledger) -> None:
    host = Host(GPU)
    place = Place(ledger, host, on(GPU))
    await place.see({GPU.pci: 22 * GIB})
    host.found = replace(host.found, accelerators=(replace(GPU, driver="595.2"),))
    place.add(on(GPU), generation=2)
    known = await place.see({GPU.pci: 20 * GIB})
    assert [r.bytes for r in known.memory.values()] == [GIB]
    (view,) = await place.observing.views()
    assert (view.starts, view.memory, view.other_drivers) == (1, GIB, ("580.1",))
    host.found = replace(host.found, accelerators=(GPU,))
    await place.observing.read()
    assert [r.bytes for r in place.observing.known.memory.values()] == [3 * GIB]
