"""One daemon on the made-up machine: the real actors, steps, runner, queues, barrier and adoption.

Made up are what they touch: Podman and the processes (`machine`), the database (a thread of SQLite's own would run in
real time), the planner (which GPU has room), the gateway (which engine has how many requests) and the proof.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from containers.ports import Ports
from hosts.facts import QUARANTINED, HostFacts
from orchestrator.admission import Admission
from orchestrator.adopting import Adopter
from orchestrator.automation import Automation
from orchestrator.config import DemandSettings
from orchestrator.context import Context
from orchestrator.demand.desk import Desk
from orchestrator.demand.groups import Group
from orchestrator.device_gate import DeviceGate
from orchestrator.device_wait import DeviceWait
from orchestrator.events import Journal
from orchestrator.issues import Issues
from orchestrator.loading_marks import LoadingMarks
from orchestrator.paths import find, prepare
from orchestrator.plan import Plan
from orchestrator.reconciling import Reconciliation
from orchestrator.registry import Registry
from orchestrator.restarting.ledger import Ledger
from orchestrator.routing import RoutingTable
from orchestrator.runner import Identity
from orchestrator.stopping.clearing import Clearing, Sightings
from orchestrator.stopping.quarantine import Quarantine
from orchestrator.telling.pausing import Pausing
from orchestrator.timing import Timing
from orchestrator.turns import Turns
from orchestrator.verbs import Verbs
from tests.history.database import Database, Store
from tests.history.engines import SimRunner
from tests.history.gateway import Front, Link
from tests.history.machine import GPUS, SIZES, Machine, Podman
from tests.history.planner import HOST_LIMIT, KINDS, Planner, entry
from tests.history.virtual_time import OWNER, VirtualClock, VirtualLoop

TTL = 90.0
"""Seconds without a request after which what is there on demand is unloaded."""
GROUPS = (Group(name="either", members=("beta", "epsilon")),)
"""These two may not be loaded side by side."""


@dataclasses.dataclass(frozen=True)
class World:
    """What daemons come into. `taste` is what is configured: a revision by model."""

    machine: Machine
    database: Database
    front: Front
    folder: Path
    taste: dict[str, int]


class Daemon:
    """One life of the daemon."""

    @classmethod
    async def born(cls, world: World, number: int) -> Daemon:
        """Assemble one, and let it begin."""
        daemon = cls(world, number)
        daemon.context = dataclasses.replace(daemon.context, ledger=await Ledger.open(daemon.context.store, "b"))
        for row in await daemon.context.store.paused():
            daemon.context.automation.pause(row.name, row.author)
        daemon._meet()
        daemon.start()
        return daemon

    def __init__(self, world: World, number: int) -> None:
        machine, database, front, folder = world.machine, world.database, world.front, world.folder
        self.machine, self.database, self.front, self.number = machine, database, front, number
        self.alive = True
        clock, timing = VirtualClock(machine.loop), Timing(load=120.0, report_period=2.0, demand_period=2.0)
        self.clock = clock
        paths = prepare(find(state_dir=folder))
        store: Any = Store(database, lambda: self.alive)
        self.journal = Journal(store, clock, host="h", boot_id="b", last=len(database.events))
        issues = Issues(self.journal, clock)
        marks = LoadingMarks(paths.loading, "b", clock, issues)
        marks.inherit()
        self.gateway = Link(front, clock, timing, lambda: self.alive)
        self._sample = machine.sample()
        self._details: dict[str, dict[str, object]] = {}
        self.admission = Admission(self.facts, HOST_LIMIT)
        gate = DeviceGate(self.facts, lambda _: False)
        sightings = Sightings()
        self.quarantine = Quarantine(issues, self._set_quarantined)
        self._listeners: list[Callable[[Any], None]] = [sightings.on_sample, self.quarantine.on_sample]
        clearing = Clearing(
            read=self.read,
            facts=self.facts,
            taken=gate.taken,
            sightings=sightings,
            quarantine=self.quarantine,
            journal=self.journal,
            clock=clock,
            timing=timing,
            alive=machine.alive_in,
            still=lambda pid, container: pid in {h.pid for h in machine.alive_in(container)},
        )
        podman: Any = Podman(machine, lambda: self.alive)
        planner: Any = Planner(self.admission, world.taste)
        gateway: Any = self.gateway
        self.runner = SimRunner(
            podman=podman,
            paths=paths,
            identity=Identity(paths.owner, "h"),
            admission=self.admission,
            model_folders=tuple,
            gateway=gateway,
            ports=Ports(clock.now),
            clock=clock,
            timing=timing,
            log_bytes=lambda: 65536,
            marks=marks,
            refresh=self.read,
            clearing=clearing,
            journal=self.journal,
        )
        self.runner.machine = machine
        needs = DeviceWait(
            facts=self.facts,
            probe=self.read,
            freshen=self.read,
            need=lambda *_: None,
            memory=store,
            issues=issues,
        )
        automation = Automation()
        desk = Desk(
            DemandSettings(ttl_s=TTL, residence_s=10.0, turn_s=20.0),
            GROUPS,
            admission=self.admission,
            gateway=self.gateway,
            journal=self.journal,
            automation=automation,
            clock=clock,
            timing=timing,
        )
        self.desk = desk
        parts: Any = {
            "paths": paths,
            "clock": clock,
            "timing": timing,
            "store": store,
            "journal": self.journal,
            "issues": issues,
            "routing": RoutingTable(boot_id="b", owner=paths.owner, host="h", revision=1),
            "gateway": self.gateway,
            "admission": self.admission,
            "planning": planner,
            "runner": self.runner,
            "marks": marks,
            "guard": _Room(),
            "images": _NoImages(),
            "devices": gate,
            "needs": needs,
            "turns": Turns(),
            "automation": automation,
            "demand": desk,
        }
        self.context = Context(**parts)
        self._loops: list[asyncio.Task[None]] = []

    def _meet(self) -> None:
        planner: Any = self.context.planning
        podman: Any = self.runner.podman
        loops: Any = _Loops()
        self.registry = Registry(self.context, planner, "h")
        self.desk.actors = self.registry.all
        self.verbs = Verbs(self.context, self.registry)
        self.pausing = Pausing(self.context, self.registry)
        self.adopter = Adopter(self.context, podman)
        self.rounds = Reconciliation(
            self.context, self.registry, adopter=self.adopter, planning=planner, loops=loops, revive=None
        )
        self.rounds.sweep = _nothing  # type: ignore[method-assign]
        for name in KINDS:
            self.registry.define(entry(name))
        for row in self.database.rows.values():
            d = self.registry.get(row.deployment).deployment
            d.desired, d.desired_by, d.drained = row.desired, row.author, row.drained

    @property
    def _loop(self) -> VirtualLoop:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        return loop

    # the host

    def facts(self) -> HostFacts:
        return self.machine.facts(self._sample, self._details)

    async def read(self) -> None:
        await asyncio.sleep(0.01)
        self._sample = self.machine.sample()
        for listener in self._listeners:
            listener(self._sample)

    def _set_quarantined(self, devices: Any) -> None:
        self._details = {device: {QUARANTINED: text} for device, text in devices.items()}

    # its life

    def start(self) -> None:
        OWNER.set(self.number)
        timing = self.context.timing
        self._loops = [
            asyncio.create_task(self.journal.write_forever(), name="journal"),
            asyncio.create_task(_every(timing.reconcile_period, self.rounds.look), name="reconcile"),
            asyncio.create_task(_every(timing.telemetry_period, self.read), name="telemetry"),
            asyncio.create_task(_every(timing.report_period, self._hear), name="reports"),
            asyncio.create_task(_every(timing.demand_period, self._look_at_demand), name="demand"),
        ]
        OWNER.set(0)
        self.front.called = self._called
        self.front.connect(self.context.routing)

    async def _hear(self) -> None:
        self.gateway.report(self.front.report())
        self.desk.heard()

    def _called(self) -> None:
        if self.alive:
            self.gateway.report(self.front.report())
            self.desk.heard()

    async def _look_at_demand(self) -> None:
        if self.rounds.adopted.is_set():
            await self.desk.look()

    async def end(self) -> None:
        """SIGTERM: engines go on."""
        for loop in self._loops:
            loop.cancel()
        await asyncio.wait(self._loops)
        await self.adopter.close()
        await self.registry.close(self.context.timing.shutdown)
        await self.kill()

    async def kill(self) -> None:
        """SIGKILL: nothing that it has not sent is done."""
        self.alive = False
        self.front.disconnect()
        for _ in range(3):
            for task in self._loop.owned(self.number):
                task.cancel()
            await asyncio.sleep(0)

    def tasks(self) -> list[str]:
        """What it has in hand."""
        return sorted(task.get_name() for task in self._loop.owned(self.number))


async def _every(period: float, look: Callable[[], Awaitable[None]]) -> None:
    while True:
        await look()
        await asyncio.sleep(period)


async def _nothing() -> object:
    return None


class _Room:
    def room_for(self, plan: Plan) -> bool:
        return True


class _NoImages:
    pulls_at_start = False


class _Loops:
    def beat(self, name: str) -> None: ...


assert set(GPUS) < set(SIZES)
