"""A world whose engine runs on GPU one of two, for tests of what becomes of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hosts.device_events import DeviceEvent
from hosts.facts import Accelerator, Cpu, HostFacts, Memory, Problem
from hosts.gpu_sample import GpuProcess, GpuSample
from hosts.telemetry import Sample
from orchestrator.device_gate import DeviceGate
from orchestrator.device_reports import Processes
from orchestrator.device_watch import DeviceWatch, Tools
from orchestrator.engine import Engine
from orchestrator.host_watch import HostWatch
from orchestrator.timing import Timing
from tests.daemon.world import LIMIT, World, a_plan
from tests.waiting import until

ONE, TWO = "0000:01:00.0", "0000:02:00.0"
MISMATCH = Problem("driver_mismatch", "nvidia", "NVML: Driver/library version mismatch (18)", "reboot")
LOST = Problem("gpu_lost", "nvidia", "GPU is lost (15)", "check power, then reboot", ONE)
QUICK = Timing(backoff_first=0.02, backoff_next=0.02, backoff_max=0.02)


def gpu(pci: str, index: int = 0) -> Accelerator:
    return Accelerator("nvidia", "RTX 3090", "sm_86", pci, None, 24, 20, False, devices=(f"nvidia.com/gpu={index}",))


def radeon(pci: str, minor: int) -> Accelerator:
    nodes = ("/dev/kfd", f"/dev/dri/renderD{minor}")
    return Accelerator("amd", "Radeon", "gfx1100", pci, None, 24, 20, False, devices=nodes)


def facts(*gpus: Accelerator, problems: tuple[Problem, ...] = ()) -> HostFacts:
    return HostFacts("h", None, None, Cpu(None, "x86_64", 1), Memory(1, 1), gpus, problems)


class Scene:
    """A world whose engine runs on GPU one of two, and a watch over both."""

    def __init__(self, world: World, host: HostWatch) -> None:
        self.world, self.host = world, host
        self.containers: dict[int, str] = {}
        self.gone: set[int] = set()
        self.module = 1
        self.claimed: list[str] = []
        self.gate = DeviceGate(host.facts, lambda _: False)
        world.gpus.bar = self.gate.bar
        world.look = host.facts
        world.planner.answer = a_plan(devices=("nvidia.com/gpu=0",))
        self.watch = DeviceWatch(
            Tools(
                host=host,
                gate=self.gate,
                journal=world.journal,
                issues=world.context.issues,
                clock=world.clock,
                actors=lambda: [world.actor],
                processes=Processes(self.containers.get, lambda pid: pid not in self.gone),
                sources=(),
                module=lambda: self.module,
                claim=self.claimed.extend,
            )
        )

    def event(self, number: int, pid: int | None = None, pci: str | None = ONE, source: str = "kernel") -> None:
        now = self.world.clock.now()
        self.watch.take(DeviceEvent(source, "xid", pci, number, pid, f"NVRM: Xid {number}", now))

    def reading(self, *problems: Problem, without: str | None = None, pids: tuple[int, ...] = ()) -> None:
        broken = {p.device for p in problems} | {without}
        processes = tuple(GpuProcess(pid, 1, "compute") for pid in pids)
        gpus = {
            a.pci: GpuSample(a.pci, memory_free=20, processes=processes)
            for a in self.host.facts().accelerators
            if a.pci not in broken
        }
        self.watch.on_sample(Sample({}, problems, {} if None in {p.device for p in problems} else gpus))

    @property
    def issues(self) -> list[tuple[str, str]]:
        return [(i.code, i.subject) for i in self.world.context.issues.list()]

    def health(self, pci: str = ONE) -> object:
        return next(a for a in self.host.facts().accelerators if a.pci == pci).details["health"]

    async def evidence(self, code: str) -> Mapping[str, Any]:
        return [e async for e in self.world.journal.follow() if e.code == code][-1].evidence

    async def failed_with(self) -> Mapping[str, Any]:
        await self.world.until_code("failed")
        return await self.evidence("failed")


async def restarted(scene: Scene, engine: Engine) -> Engine:
    def another() -> Engine | None:
        serving = scene.world.d.serving_engine
        return serving if serving is not None and serving is not engine else None

    found = await until(another, LIMIT, "another engine")
    assert found is not None
    return found
