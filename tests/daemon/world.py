"""One actor without Podman: its engines are `sleep` processes, its planner says what the test wants.

For faults and moments that cannot be had for real in a test's time: a Podman that fails at one step,
a disk that is full in the middle of a start, a stop that arrives in a drain. What real engines do is in
`tests/stack`.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from containers import labels as container_labels
from containers.errors import PodmanFailed
from containers.ports import Ports
from containers.spec import ContainerState
from hosts.facts import HostFacts
from orchestrator import device_need, device_policy
from orchestrator.actor import Actor
from orchestrator.adopting import Adopter
from orchestrator.catalogue import shipped
from orchestrator.clock import SystemClock
from orchestrator.context import Context
from orchestrator.decision import Decision
from orchestrator.deployment import Deployment
from orchestrator.device_policy import Lost
from orchestrator.device_wait import DeviceWait
from orchestrator.engine import Engine, make_socket_folder, write_key
from orchestrator.errors import EngineFailed
from orchestrator.events import Journal
from orchestrator.gateway_link import Drained, GatewayLink
from orchestrator.issues import Issues
from orchestrator.loading_marks import LoadingMarks
from orchestrator.models import ModelEntry
from orchestrator.paths import find, prepare
from orchestrator.plan import Evidence, ExpectedMemory, Method, Plan, Planned, Rung
from orchestrator.profiles import load
from orchestrator.proof import Proof
from orchestrator.restarting.ledger import Ledger
from orchestrator.routing import Route, RoutingTable
from orchestrator.store import Store
from orchestrator.timing import Timing
from orchestrator.turns import Turns
from orchestrator.views import Desired, State, Why
from tests.waiting import until

LIMIT = 10.0


def a_plan(total: int = 1, devices: tuple[str, ...] = (), argv: tuple[str, ...] = ()) -> Plan:
    """A plan that launches `argv` and expects `total` bytes."""
    memory = ExpectedMemory(weights=total, kv=0, state=0, drafter=0, compute=0, total=total, budget=None)
    return Plan(
        model="m",
        variant="v",
        runtime="llama.cpp",
        runtime_version=None,
        image="sha256:0",
        method=Method.NONE,
        draft_tokens=0,
        drafter=None,
        context=1,
        parallel=1,
        argv=argv,
        env={},
        devices=devices,
        mounts=(),
        expected_memory=memory,
        evidence=Evidence.UNTRIED,
    )


def an_entry(**more: object) -> ModelEntry:
    variant = {"name": "v", "format": "gguf", "quantisation": "F32", "path": "m/x.gguf"}
    return ModelEntry.model_validate({"name": "m", "variants": [variant], **more})


def marks_in(folder: Path, boot_id: str = "b") -> LoadingMarks:
    """Loading marks whose issues nobody reads."""
    nowhere: Any = None
    clock = SystemClock()
    journal = Journal(nowhere, clock, host="h", boot_id=boot_id, last=0)
    return LoadingMarks(folder, boot_id, clock, Issues(journal, clock))


class Sleepers:
    """In the runner's place: engines are `sleep` processes that are ready at once."""

    def __init__(self, clock: SystemClock) -> None:
        self.clock = clock
        self.children: list[subprocess.Popen[bytes]] = []
        self.ups = self.downs = self.reads = 0
        self.fail_cleared: BaseException | None = None
        """What is left of a container that was removed."""
        self.fail_up: BaseException | None = None
        self.fail_down: BaseException | None = None
        self.create_may_end: asyncio.Event | None = None
        """When set, a create that was begun cannot be cancelled before this event."""
        self.drain_may_end: asyncio.Event | None = None
        self.ports = Ports(clock.now)

    async def bring_up(self, engine: Engine, *, limit: float, seen: Any) -> Proof:
        self.ups += 1
        engine.move(State.CREATING)
        if self.fail_up is not None:
            raise self.fail_up
        if self.create_may_end is not None:
            create = asyncio.ensure_future(self.create_may_end.wait())
            try:
                await asyncio.shield(create)
            except asyncio.CancelledError:
                await asyncio.wait([create])
                raise
        child = subprocess.Popen(["sleep", "600"])
        self.children.append(child)
        engine.container_id = f"c{engine.generation}"
        engine.follow(child.pid)
        for state in (State.LOADING, State.WARMING, State.READY):
            engine.move(state)
        engine.ready_at = self.clock.now()
        return Proof("text", 0, 0, None)

    async def drain(self, engine: Engine, revision: int) -> Drained:
        if self.drain_may_end is not None:
            await self.drain_may_end.wait()
        return Drained(True, 0, "drained")

    async def take_down(self, engine: Engine) -> None:
        self.downs += 1
        if self.fail_down is not None:
            raise self.fail_down
        engine.unfollow()

    async def cleared(self, engine: Engine) -> None:
        if self.fail_cleared is not None:
            raise self.fail_cleared

    async def read_host(self) -> None:
        self.reads += 1

    async def tail(self, engine: Engine) -> list[Any]:
        return []

    async def why_it_ended(self, engine: Engine) -> EngineFailed:
        return EngineFailed("engine_killed", "killed")

    def container_name(self, engine: Engine) -> str:
        return f"n-{engine.id}"

    def client(self, engine: Engine) -> Any:
        return _Healthy()

    def kill(self, number: int = -1) -> None:
        self.children[number].kill()
        self.children[number].wait()


class _Healthy:
    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def get(self, path: str, *, timeout: float) -> Any:
        return None


class NoImages:
    """A host whose starts pull nothing."""

    pulls_at_start = False


class Planner:
    """Answers with a plan, or raises an error."""

    def __init__(self) -> None:
        self.answer: Plan | BaseException = a_plan()
        self.ladder: tuple[Rung, ...] = ()

    def load_prior(self, plan: Plan) -> float:
        return 1.0

    def load_limit(self, plan: Plan, seen: float | None) -> float:
        return 900.0

    async def plan(
        self,
        entry: ModelEntry,
        *,
        speculate: bool = True,
        running: Plan | None = None,
        fetch: object = None,
        choose: Callable[[Planned], Planned] = lambda found: found,
    ) -> Plan:
        if isinstance(self.answer, BaseException):
            raise self.answer
        plan = choose(Planned(self.answer, ladder=self.ladder)).plan
        assert plan is not None
        return plan


class Memory:
    """As much as the test says."""

    def __init__(self) -> None:
        self.left = 10**12
        self.adopted: dict[str, bool] = {}
        """Engines that were found, and whether they were loading."""
        self.staying: set[str] = set()

    def facts_for(self, model: str) -> Any:
        return None

    def free(self, devices: object) -> int:
        return self.left

    def adopt(self, engine: str, plan: Plan, *, loading: bool = False) -> None:
        self.adopted[engine] = loading

    def stays(self, engine: str) -> None:
        self.staying.add(engine)

    def forget(self, engine: str) -> None:
        self.adopted.pop(engine, None)


class Room:
    """In the memory guard's place: whether there is room again, as the test says."""

    def __init__(self) -> None:
        self.there = True

    def room_for(self, plan: Plan) -> bool:
        return self.there


class Gpus:
    """In the gate's place: nothing is in the way unless a test gives it another `bar`."""

    def __init__(self) -> None:
        self.bar: Callable[[Deployment], Why | None] = lambda _: None
        self.after_loss: Callable[[Plan], Decision[Lost]] = lambda plan: device_policy.after_loss(plan.devices, ())
        self.taken: Callable[[Plan], frozenset[str]] = lambda plan: frozenset(plan.devices)
        self.named: Callable[[str], str] = lambda pci: pci


class Containers:
    """In Podman's place: what a test says there is."""

    def __init__(self) -> None:
        self.states: list[ContainerState] = []
        self.unstoppable: set[str] = set()
        self.stopped: list[str] = []
        self.removed: list[str] = []

    async def containers(self, labels: object) -> tuple[ContainerState, ...]:
        return tuple(self.states)

    async def inspect(self, container: str) -> ContainerState | None:
        return next((s for s in self.states if s.id == container), None)

    async def stop(self, container: str, timeout: float, *, limit: float | None = None) -> None:
        if container in self.unstoppable:
            raise PodmanFailed("container state improper")
        self.stopped.append(container)

    async def remove(self, container: str) -> bool:
        if container in self.unstoppable:
            raise PodmanFailed("container state improper")
        self.removed.append(container)
        return True


class World:
    """An actor with everything around it."""

    @classmethod
    async def open(cls, folder: Path, timing: Timing | None = None, **entry: object) -> Self:
        world = cls()
        world.paths = prepare(find(state_dir=folder / "s"))
        world.clock, world.timing = SystemClock(), timing or Timing()
        world.store = await Store.open(world.paths.database)
        world.journal = Journal(world.store, world.clock, host="h", boot_id="b", last=0)
        world.routing = RoutingTable(boot_id="b", owner="o", host="h", revision=1)
        world.gateway = GatewayLink(world.paths.gateway_socket, world.clock, world.timing)
        world.planner, world.runner, world.memory = Planner(), Sleepers(world.clock), Memory()
        world.issues = Issues(world.journal, world.clock)
        world.marks = LoadingMarks(world.paths.loading, "b", world.clock, world.issues)
        world.room = Room()
        world.gpus = Gpus()
        world.facts, world.found, world.probes = load("dankclaw"), None, 0
        world.look = lambda: world.facts
        shown = shipped().images
        world.needs = DeviceWait(
            facts=lambda: world.look(),  # noqa: PLW0108 - a test may put another look in its place
            probe=world._probe,
            freshen=world._freshen,
            need=lambda entry, last, why: device_need.need(entry, entry.image, shown, last, why),
            memory=world.store,
            issues=world.issues,
        )
        parts: Any = (
            world.gateway,
            world.memory,
            world.planner,
            world.runner,
            world.marks,
            world.room,
            NoImages(),
            world.gpus,
            world.needs,
            Turns(),
        )
        world.context = Context(
            world.paths,
            world.clock,
            world.timing,
            world.store,
            world.journal,
            world.issues,
            world.routing,
            *parts,
        )
        world.context = replace(world.context, ledger=await Ledger.open(world.store, "b"))
        world.actor = Actor(Deployment(an_entry(**entry), "h"), world.context)
        world.podman = Containers()
        world.adopter = Adopter(world.context, world.podman)  # type: ignore[arg-type]
        world.task = None
        return world

    paths: Any
    clock: SystemClock
    timing: Timing
    store: Store
    journal: Journal
    issues: Issues
    marks: LoadingMarks
    gpus: Gpus
    routing: RoutingTable
    gateway: GatewayLink
    planner: Planner
    runner: Sleepers
    memory: Memory
    room: Room
    needs: DeviceWait
    facts: HostFacts
    look: Callable[[], HostFacts]
    found: HostFacts | None
    """What the next look at the machine finds; None: what there was."""
    probes: int
    context: Context
    actor: Actor
    podman: Containers
    adopter: Adopter
    task: asyncio.Task[None] | None

    @property
    def d(self) -> Deployment:
        return self.actor.deployment

    async def _probe(self) -> None:
        self.probes += 1
        self.facts = self.found or self.facts

    async def _freshen(self) -> None: ...

    def run(self) -> None:
        self.task = asyncio.create_task(self.actor.run())

    async def started(self) -> Engine:
        """Run the actor and wait until an engine serves."""
        self.run()
        await asyncio.sleep(0)
        await self.actor.set_desired(Desired.RUNNING, "t")
        await until(lambda: self.d.serving_engine is not None, LIMIT, "an engine serves")
        assert self.d.serving_engine is not None
        return self.d.serving_engine

    async def codes(self) -> list[str]:
        async with aclosing(self.journal.follow()) as entries:  # type: ignore[type-var]
            return [event.code async for event in entries]

    def journal_codes(self) -> list[str]:
        """The codes of the entries that are in memory."""
        return [event.code for event in self.journal._recent]

    async def until_code(self, code: str) -> None:
        async def there() -> bool:
            return code in await self.codes()

        await until(there, LIMIT, code)

    def route(self) -> Route:
        return self.d.route(self.clock.now(), self.timing.held_backoff)

    def container(self, engine: str, pid: int, *, deployment: str = "m", state: str = "running") -> ContainerState:
        """A container with an engine's labels."""
        plan = a_plan()
        labels = container_labels.Labels(
            deployment=deployment,
            generation=1,
            plan=plan.digest,
            host="h",
            owner=self.paths.owner,
            plan_json=json.dumps(plan.to_dict()),
            engine=engine,
        )
        return ContainerState(
            id=f"c-{engine}",
            name=f"n-{engine}",
            state=state,
            labels=container_labels.write(labels),
            image_id="sha256:0",
            pid=pid,
            conmon_pid=1,
            conmon_alive=True,
            alive=True,
            exit_code=None,
            started_at=1.0,
        )

    async def found_running(self, *, desired: Desired | None = Desired.RUNNING) -> str:
        """A proven engine that a former daemon started; its id."""
        engine = "a" * 16
        make_socket_folder(self.paths, engine)
        write_key(self.paths, engine, "k")
        await self.store.mark_proven(engine, 1.0)
        if desired is not None:
            await self.store.set_desired("m", desired, "t", 1.0)
            self.d.desired = desired
        child = subprocess.Popen(["sleep", "600"])
        self.runner.children.append(child)
        self.podman.states.append(self.container(engine, child.pid))
        return engine

    async def adopt(self) -> None:
        await self.adopter.adopt({"m": self.actor}.get, {"m": self.actor})

    async def close(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task], timeout=LIMIT)
        await self.adopter.close()
        for child in self.runner.children:
            child.kill()
            child.wait()
        await self.store.close()
        shutil.rmtree(self.paths.run_dir)  # may be a short folder beside the state folder
