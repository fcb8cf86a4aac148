"""One daemon on the made-up machine: the real actors, steps, runner, queues, barrier and adoption.

Made up are what they touch: Podman and the processes (`machine`), the database (a thread of SQLite's own would run in
real time), the planner (which GPU has room), the gateway (which engine has how many requests) and the proof.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Self

from containers.ports import Ports
from hosts.facts import QUARANTINED, HostFacts
from orchestrator.admission import Admission
from orchestrator.adopting import Adopter
from orchestrator.context import Context
from orchestrator.device_gate import DeviceGate
from orchestrator.device_wait import DeviceWait
from orchestrator.engine import Engine
from orchestrator.engine_client import EngineUnreachable
from orchestrator.errors import DatabaseFailed, DoesNotFit, EngineFailed
from orchestrator.events import Journal
from orchestrator.gateway_link import Drained
from orchestrator.issues import Issues
from orchestrator.loading_marks import LoadingMarks
from orchestrator.models import ModelEntry
from orchestrator.paths import find, prepare
from orchestrator.plan import Evidence, ExpectedMemory, Method, Plan, Planned, Rung
from orchestrator.proof import Proof
from orchestrator.reconciling import Reconciliation
from orchestrator.registry import Registry
from orchestrator.restarting.ledger import Ledger
from orchestrator.routing import RoutingTable
from orchestrator.runner import Identity, Runner
from orchestrator.stopping.clearing import Clearing, Sightings
from orchestrator.stopping.quarantine import Quarantine
from orchestrator.store import DesiredRow
from orchestrator.timing import Timing
from orchestrator.turns import Turns
from orchestrator.verbs import Verbs
from orchestrator.views import Desired, Event
from tests.history.machine import GIB, GPUS, HOST, SIZES, Machine, Podman, node
from tests.history.virtual_time import OWNER, VirtualClock, VirtualLoop

HOST_LIMIT = 48 * GIB


@dataclasses.dataclass(frozen=True)
class Kind:
    """A model: on how many GPUs (0: in system memory) it takes how much on each, and how long it loads."""

    gpus: int
    size: int
    load_s: float
    priority: int = 0


KINDS = {
    "alpha": Kind(1, 14 * GIB, 20.0, 5),
    "beta": Kind(1, 9 * GIB, 5.0),
    "gamma": Kind(2, 8 * GIB, 60.0),
    "delta": Kind(0, 30 * GIB, 9.0),
}


def entry(name: str) -> ModelEntry:
    variant = {"name": "v", "format": "gguf", "quantisation": "F32", "path": f"{name}/x.gguf"}
    return ModelEntry.model_validate({"name": name, "priority": KINDS[name].priority, "variants": [variant]})


class Database:
    """What outlives daemons. `full`: nothing can be written."""

    def __init__(self) -> None:
        self.full = False
        self.rows: dict[str, DesiredRow] = {}
        self.engines: set[str] = set()
        self.generations: dict[str, int] = {}
        self.starts: dict[str, float] = {}
        self.on: dict[str, tuple[Any, ...]] = {}
        self.events: list[Event] = []
        self.standings: dict[str, str] = {}
        self.crashes = 0


class Store:
    """One daemon's connection to it; each write takes a moment, and none comes from a daemon that is dead."""

    def __init__(self, database: Database, there: Callable[[], bool]) -> None:
        self._db = database
        self._there = there

    async def _write(self) -> None:
        await asyncio.sleep(0.001)
        if not self._there():
            await asyncio.Event().wait()
        if self._db.full:
            raise DatabaseFailed("the disk is full", hint="free some")

    async def desired(self) -> Sequence[DesiredRow]:
        return list(self._db.rows.values())

    async def set_desired(self, name: str, desired: Desired, author: str, at: float) -> None:
        await self._write()
        self._db.rows[name] = DesiredRow(name, desired, author)

    async def set_drained(self, name: str, author: str, at: float) -> None:
        await self._write()
        if name in self._db.rows:
            self._db.rows[name] = dataclasses.replace(self._db.rows[name], drained=True)

    async def clear_drained(self, name: str) -> None:
        await self._write()
        if name in self._db.rows:
            self._db.rows[name] = dataclasses.replace(self._db.rows[name], drained=False)

    async def next_generation(self, name: str, at_least: int = 1) -> int:
        await self._write()
        self._db.generations[name] = max(self._db.generations.get(name, 0) + 1, at_least)
        return self._db.generations[name]

    async def proven(self) -> frozenset[str]:
        return frozenset(self._db.engines)

    async def mark_proven(self, engine: str, at: float) -> None:
        await self._write()
        self._db.engines.add(engine)

    async def forget_engine(self, engine: str) -> None:
        await self._write()
        self._db.engines.discard(engine)

    async def record_start(self, plan: str, name: str, seconds: float, at: float) -> None:
        await self._write()
        self._db.starts[plan] = seconds

    async def start_seconds(self, plan: str, name: str) -> float | None:
        return self._db.starts.get(plan)

    async def devices(self, name: str) -> Sequence[Any]:
        return self._db.on.get(name, ())

    async def set_devices(self, name: str, devices: Sequence[Any], at: float) -> None:
        await self._write()
        self._db.on[name] = tuple(devices)

    async def standings(self) -> Sequence[tuple[str, str]]:
        return list(self._db.standings.items())

    async def keep_standing(self, name: str, text: str, at: float) -> None:
        await self._write()
        self._db.standings[name] = text

    async def forget_standing(self, name: str) -> None:
        await self._write()
        self._db.standings.pop(name, None)

    async def add_crash(self, row: Sequence[object]) -> None:
        await self._write()
        self._db.crashes += 1

    async def append(self, events: Sequence[Event]) -> None:
        await self._write()
        self._db.events += events


class Gateway:
    """Who has how many requests. Engines by id, each with the moments at which its requests end."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.requests: dict[str, list[float]] = {}
        self.broken: list[str] = []
        """Engines that were taken away from under a request although the drain's time was not up."""

    def engine_in_flight(self, engine: str) -> int:
        left = [end for end in self.requests.get(engine, ()) if end > self._machine.now]
        self.requests[engine] = left
        return len(left)

    def in_flight(self, model: str) -> int:
        return 0

    def waiting(self, model: str) -> int:
        return 0

    def forget(self, model: str) -> None: ...

    async def drain(self, engine: str, limit: float, revision: int) -> Drained:
        end = self._machine.now + limit
        while self.engine_in_flight(engine):
            if self._machine.now >= end:
                return Drained(False, self.engine_in_flight(engine), "time is up")
            await asyncio.sleep(max(0.001, min(end, *self.requests[engine]) - self._machine.now))
        return Drained(True, 0, "drained")


class Planner:
    """The GPU with the most room, else (as an earlier plan would have it) the first one that is not left alone."""

    def __init__(self, admission: Admission, taste: dict[str, int]) -> None:
        self._admission = admission
        self.taste = taste
        """By model: which revision of it is configured."""

    def entry(self, name: str) -> ModelEntry | None:
        return None

    def find(self, name: str) -> ModelEntry:
        return entry(name)

    def load_prior(self, plan: Plan) -> float:
        return 1.0

    def load_limit(self, plan: Plan, seen: float | None) -> float:
        return 120.0

    async def plan(
        self,
        entry: ModelEntry,
        *,
        speculate: bool = True,
        running: Plan | None = None,
        fetch: object = None,
        choose: Callable[[Planned], Planned] = lambda found: found,
    ) -> Plan:
        await asyncio.sleep(0.02)
        kind, facts = KINDS[entry.name], self._admission.facts_for(entry.name)
        size = kind.size if speculate else kind.size - 3 * GIB
        usable = [a for a in facts.accelerators if QUARANTINED not in a.details]
        best = sorted(usable, key=lambda a: (-(a.memory_free or 0), a.pci))[: kind.gpus]
        if len(best) < kind.gpus:
            raise DoesNotFit(f"{entry.name} needs {kind.gpus} GPUs")
        gpus = sorted(a.pci for a in best)
        where = gpus or [HOST]
        env = {f"SIZE_{list(SIZES).index(device)}": str(size) for device in where}
        best_plan = Plan(
            model=entry.name,
            variant="v",
            runtime="llama.cpp",
            runtime_version=None,
            image="sha256:" + "0" * 64,
            method=Method.DFLASH if speculate else Method.NONE,
            draft_tokens=4 if speculate else 0,
            drafter=None,
            context=1,
            parallel=4,
            argv=("--rev", str(self.taste.get(entry.name, 0))),
            env={**env, "LOAD_S": str(kind.load_s)},
            devices=tuple(node(gpu) for gpu in gpus),
            mounts=(),
            expected_memory=ExpectedMemory(size, 0, 0, 0, 0, size, None, devices=max(1, kind.gpus)),
            evidence=Evidence.UNTRIED,
        )
        fewer = dataclasses.replace(best_plan, parallel=2, argv=(*best_plan.argv, "--few"))
        plain = dataclasses.replace(best_plan, method=Method.NONE, draft_tokens=0, argv=(*best_plan.argv, "--plain"))
        rungs = [Rung("plan", "the plan as it is", best_plan), Rung("fewer_slots", "2 slots instead of 4", fewer)]
        rungs += [Rung("method_none", "no speculation", plain)] if speculate else []
        chosen = choose(Planned(best_plan, ladder=tuple(rungs))).plan
        assert chosen is not None
        return chosen


class Answer:
    def __init__(self, status: int, model: str) -> None:
        self.status, self._model = status, model

    def json(self) -> object:
        """The only list that is asked for: of models."""
        return {"data": [{"id": self._model}]}


class Client:
    """How an engine answers: by how far its process has loaded."""

    def __init__(self, machine: Machine, engine: Engine) -> None:
        self._machine, self.engine = machine, engine

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def get(self, path: str, *, timeout: float) -> Answer:
        await asyncio.sleep(0.005)
        process = self._machine.process(self.engine.pid or 0)
        if process is None or not process.alive:
            raise EngineUnreachable("refused")
        return Answer(200 if process.loaded(self._machine.now) else 503, self.engine.plan.model)

    async def post(self, path: str, body: object, *, timeout: float) -> Answer:
        return await self.get(path, timeout=timeout)

    @property
    def fate(self) -> str:
        process = self._machine.process(self.engine.pid or 0)
        return "gone" if process is None else process.fate


async def prove(client: Client, *_: object, **__: object) -> Proof:
    """In the place of the proof."""
    await asyncio.sleep(0.5)
    if client.fate == "wrong":
        raise EngineFailed("proof_failed", "it answers nonsense", retryable=True)
    return Proof("text", 8, 4, True)


class SimRunner(Runner):
    machine: Machine

    def client(self, engine: Engine) -> Any:
        return Client(self.machine, engine)


class Daemon:
    """One life of the daemon."""

    @classmethod
    async def born(
        cls, machine: Machine, database: Database, folder: Path, number: int, taste: dict[str, int]
    ) -> Daemon:
        """Assemble one, and let it begin."""
        daemon = cls(machine, database, folder, number, taste)
        daemon.context = dataclasses.replace(daemon.context, ledger=await Ledger.open(daemon.context.store, "b"))
        daemon._meet()
        daemon.start()
        return daemon

    def __init__(self, machine: Machine, database: Database, folder: Path, number: int, taste: dict[str, int]) -> None:
        self.machine, self.database, self.number = machine, database, number
        self.alive = True
        clock, timing = VirtualClock(machine.loop), Timing(load=120.0)
        self.clock = clock
        paths = prepare(find(state_dir=folder))
        store: Any = Store(database, lambda: self.alive)
        self.journal = Journal(store, clock, host="h", boot_id="b", last=len(database.events))
        issues = Issues(self.journal, clock)
        marks = LoadingMarks(paths.loading, "b", clock, issues)
        marks.inherit()
        self.gateway = Gateway(machine)
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
        planner: Any = Planner(self.admission, taste)
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
        }
        self.context = Context(**parts)
        self._loops: list[asyncio.Task[None]] = []

    def _meet(self) -> None:
        planner: Any = self.context.planning
        podman: Any = self.runner.podman
        loops: Any = _Loops()
        self.registry = Registry(self.context, planner, "h")
        self.verbs = Verbs(self.context, self.registry)
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
        ]
        OWNER.set(0)

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
