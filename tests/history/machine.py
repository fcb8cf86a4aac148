"""A machine that is made up: two GPUs, their memory, processes, containers, and a Podman that fails as it is told to.

A fake, because a history of thousands of faults has to pass in a second, and because some of its faults (a process in
the driver's hands, memory that a driver keeps) cannot be had for real. Memory is the truth here: whenever a process
takes some, it is added up, and more than there is on a device is the worst that can be found.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from containers.errors import ContainerMissing, NameInUse, PodmanFailed, PodmanTimeout, PodmanUnreachable
from containers.spec import ContainerSpec, ContainerState, LogLine
from hosts.facts import Accelerator, Cpu, HostFacts, Memory
from hosts.gpu_sample import GpuProcess, GpuSample
from hosts.gpu_users import GpuUser
from hosts.telemetry import Sample
from orchestrator.stopping.holders import Holder
from tests.history.virtual_time import OWNER

GIB = 1 << 30
HOST = "host"
GPUS = ("0000:01:00.0", "0000:02:00.0")
SIZES = {HOST: 64 * GIB, GPUS[0]: 24 * GIB, GPUS[1]: 24 * GIB}
LATENCY = 0.02
HANGS = 30.0
RUNNING = ("running", "stopping")
FLAWS: Mapping[str, Callable[[str, int], bool]] = {
    "none": lambda _method, _slots: False,
    "drafting": lambda method, _slots: method != "none",
    "dflash": lambda method, _slots: method == "dflash",
    "slots": lambda _method, slots: slots > 2,
    "all": lambda _method, _slots: True,
}
"""Which launches fail, by method and slots."""


def node(gpu: str) -> str:
    """The CDI name of a GPU."""
    return f"nvidia.com/gpu={GPUS.index(gpu)}"


@dataclass(eq=False)
class Process:
    """An engine's process. `size` bytes by device, which it takes while it loads for `load_s` seconds."""

    machine: Machine
    pid: int
    container: str
    deployment: str
    generation: int
    size: Mapping[str, int]
    started: float
    fate: str
    load_s: float
    alive: bool = True
    engine: str = ""
    """Its engine's id."""
    rung: tuple[str, int] = ("none", 4)
    """Method and slots that it was launched with."""
    flawed: bool = False
    """It was launched with what does not work."""
    deaf: bool = False
    """It ignores SIGTERM."""
    hung: bool = False
    """It listens and answers nothing any more."""
    stuck: bool = False
    """It is in the driver's hands: nothing ends it."""
    kept: dict[str, int] = field(default_factory=dict)
    """Bytes that the driver keeps after its end."""
    code: int | None = None
    ended_at: float | None = None
    watchers: list[Callable[[], None]] = field(default_factory=list)

    def loaded(self, now: float) -> bool:
        return self.fate != "never" and now >= self.started + self.load_s

    def bytes_on(self, device: str, now: float) -> int:
        if not self.alive:
            return self.kept.get(device, 0)
        share = min(1.0, (now - self.started) / self.load_s) if self.load_s else 1.0
        return int(self.size.get(device, 0) * share)

    def end(self, code: int, *, fault: bool = False) -> bool:
        """Die, if it can; by Outrider's hand unless it is a fault."""
        if not self.alive:
            return True
        if self.stuck:
            return False
        self.alive, self.code, self.ended_at = False, code, self.machine.now
        self.machine.ended(self, fault)
        if self.machine.keeps:
            self.kept = dict(self.size)
        for ended in self.watchers:
            self.machine.loop.call_soon(ended)
        self.watchers.clear()
        return True

    def ask_to_end(self) -> None:
        if not self.deaf:
            self.end(0)


@dataclass(eq=False)
class Container:
    id: str
    spec: ContainerSpec
    state: str = "created"
    process: Process | None = None
    conmon: bool = True


class Machine:
    """What there is, and what goes wrong with it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.containers: dict[str, Container] = {}
        self.processes: list[Process] = []
        self.numbers = itertools.count(1)
        self.fates: deque[str] = deque()
        """Of the next processes: dies, never (healthy), wrong (answers); else they load."""
        self.podman = "there"
        """there, gone (nobody answers) or silent (no answer before the deadline)."""
        self.lost_answers = 0
        """So many of the next changes are made, and Podman says that they failed."""
        self.keeps = False
        """Whether the driver keeps the memory of what ends from now on."""
        self.healed = 0.0
        """When the driver gave back last what it had kept."""
        self.flaws: dict[str, str] = {}
        """By model: which launches of it fail again and again (`FLAWS`)."""
        self.leaving: Callable[[], Collection[str]] = tuple
        """Containers that belong to no engine and are being removed."""
        self.launched: Callable[[Process], None] = lambda _: None
        self.ended: Callable[[Process, bool], None] = lambda *_: None
        """Told of each end, and whether it was a fault."""
        self.wrong: list[str] = []
        """What must never be, and was."""

    @property
    def now(self) -> float:
        return self.loop.time()

    def used(self, device: str) -> int:
        return sum(p.bytes_on(device, self.now) for p in self.processes)

    def will_use(self, device: str) -> int:
        """What is used once all has loaded."""
        return sum(p.size.get(device, 0) if p.alive else p.kept.get(device, 0) for p in self.processes)

    def sample(self) -> Sample:
        """A reading."""
        free = {device: max(0, size - self.used(device)) for device, size in SIZES.items()}
        gpus, users = {}, []
        for gpu in GPUS:
            here = [p for p in self.processes if p.bytes_on(gpu, self.now) > 0]
            seen = tuple(GpuProcess(p.pid, p.bytes_on(gpu, self.now), "compute") for p in here if p.alive)
            gpus[gpu] = GpuSample(gpu, SIZES[gpu], self.used(gpu), 0, free[gpu], processes=seen)
            users += [
                GpuUser(gpu, p.pid, "engine", p.bytes_on(gpu, self.now), "compute", p.container, False)
                for p in here
                if p.alive
            ]
        return Sample(free, gpus=gpus, users=tuple(users))

    def facts(self, sample: Sample, details: Mapping[str, Mapping[str, object]]) -> HostFacts:
        """The host as of a reading."""
        cards = tuple(
            Accelerator(
                "nvidia",
                "x",
                "sm_86",
                gpu,
                None,
                SIZES[gpu],
                sample.free[gpu],
                False,
                devices=(node(gpu),),
                details=details.get(gpu, {}),
            )
            for gpu in GPUS
        )
        return HostFacts("h", None, None, Cpu(None, "x86_64", 8), Memory(SIZES[HOST], sample.free[HOST]), cards)

    def process(self, pid: int) -> Process | None:
        return next((p for p in self.processes if p.pid == pid), None)

    def last_end(self, container: str) -> float:
        """When the last process of a container ended; 0.0 for none."""
        return max((p.ended_at or 0.0 for p in self.processes if p.container == container), default=0.0)

    def alive_in(self, container: str) -> tuple[Holder, ...]:
        return tuple(
            Holder(p.pid, "engine", state="D" if p.stuck else "S")
            for p in self.processes
            if p.container == container and p.alive
        )

    def kill(self, container: str, pids: Any) -> None:
        for pid in pids:
            process = self.process(pid)
            if process is not None and process.container == container:
                process.end(137)

    def launch(self, container: Container) -> None:
        spec = container.spec
        size = {device: int(spec.env[f"SIZE_{n}"]) for n, device in enumerate(SIZES) if f"SIZE_{n}" in spec.env}
        process = Process(
            self,
            pid=100_000 + next(self.numbers),
            container=container.id,
            deployment=spec.labels["io.outrider.deployment"],
            generation=int(spec.labels["io.outrider.generation"]),
            size=size,
            started=self.now,
            fate=self.fates.popleft() if self.fates else "loads",
            load_s=float(spec.env["LOAD_S"]),
            engine=spec.labels["io.outrider.engine"],
            rung=(spec.env["METHOD"], int(spec.env["SLOTS"])),
        )
        self.processes.append(process)
        container.process, container.state = process, "running"
        process.flawed = FLAWS[self.flaws.get(process.deployment, "none")](*process.rung)
        if process.fate == "dies":
            self.loop.call_later(process.load_s / 2, self._fail, process, 1)
        elif process.flawed:
            # while it loads, or once it serves
            after = process.load_s / 2 if process.generation % 2 else process.load_s + 15.0
            self.loop.call_later(after, self._fail, process, 134)
        self._look_at_memory(process)
        self.launched(process)

    def _fail(self, process: Process, code: int) -> None:
        if not process.end(code, fault=True):  # once the driver lets go of it
            self.loop.call_later(HANGS, self._fail, process, code)

    def _look_at_memory(self, newest: Process) -> None:
        for device, size in SIZES.items():
            if self.will_use(device) > size and newest.size.get(device):
                on = [f"{p.deployment}-{p.generation}" for p in self.processes if p.alive and p.size.get(device)]
                self.wrong.append(f"{device} has {size // GIB} GiB, and {self.will_use(device) / GIB:.1f} go to {on}")
        here = [p for p in self.processes if p.alive and not p.stuck and p.deployment == newest.deployment]
        mine = [p for p in here if p.container not in self.leaving()]
        loading = [p for p in mine if not p.loaded(self.now)]
        if len(loading) > 1 or len(mine) > 2:
            self.wrong.append(f"{[f'{p.deployment}-{p.generation}' for p in mine]} side by side")

    def heal(self) -> None:
        """All faults end, and what was stuck goes."""
        self.podman, self.lost_answers, self.keeps = "there", 0, False
        self.healed = self.now
        self.fates.clear()
        for process in self.processes:
            process.kept, process.deaf, process.hung = {}, False, False
            if process.stuck:
                process.stuck = False
                if process.container not in self.containers:
                    process.end(137, fault=True)


class Watch:
    """In the place of a pidfd."""

    def __init__(self, machine: Machine, pid: int, ended: Callable[[], None]) -> None:
        self._process, self._ended, self._loop = machine.process(pid), ended, machine.loop
        if self._process is None or not self._process.alive:
            self._loop.call_soon(ended)
        else:
            self._process.watchers.append(ended)

    @property
    def kills(self) -> int | None:
        """What its cgroup counts of ends for want of memory: it has none here."""
        return None

    def send(self, number: int) -> bool:
        if self._process is not None:
            self._process.end(137) if number == 9 else self._process.ask_to_end()
        return True

    def kill(self) -> bool:
        return self.send(9)

    def close(self) -> None:
        if self._process is not None and self._ended in self._process.watchers:
            self._process.watchers.remove(self._ended)


class Podman:
    """One daemon's way to the containers. `there` says whether that daemon still lives: what a dead one has sent
    is done all the same, and what it has not sent never is."""

    def __init__(self, machine: Machine, there: Callable[[], bool]) -> None:
        self._machine = machine
        self._there = there

    async def _call(self, what: str, effect: Callable[[], Any], *, changes: bool = False, seconds: float = 0.0) -> Any:
        if not self._there():
            await asyncio.Event().wait()
        # as a thread's call: whoever waits may go away, even the daemon, it goes on
        owner = OWNER.set(0)
        answer = asyncio.ensure_future(self._answer(what, effect, changes, seconds))
        OWNER.reset(owner)
        answer.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(answer)

    async def _answer(self, what: str, effect: Callable[[], Any], changes: bool, seconds: float) -> Any:
        machine = self._machine
        if machine.podman == "gone":
            raise PodmanUnreachable(f"nobody answers ({what})")
        if machine.podman == "silent":
            await asyncio.sleep(HANGS)
            raise PodmanTimeout(f"no answer ({what})")
        await asyncio.sleep(LATENCY + seconds)
        found = effect()
        if changes and machine.lost_answers > 0:
            machine.lost_answers -= 1
            raise PodmanTimeout(f"the answer was lost ({what})")
        await asyncio.sleep(LATENCY)
        return found

    def _get(self, container: str) -> Container:
        found = self._machine.containers.get(container)
        if found is None:
            raise ContainerMissing(f"no container {container}")
        return found

    async def image(self, reference: str) -> object:
        return await self._call("image", object)

    async def create(self, spec: ContainerSpec) -> str:
        def effect() -> str:
            if any(c.spec.name == spec.name for c in self._machine.containers.values()):
                raise NameInUse(spec.name)
            made = Container(f"c{next(self._machine.numbers):04d}", spec)
            self._machine.containers[made.id] = made
            return made.id

        return str(await self._call("create", effect, changes=True))

    async def start(self, container: str) -> None:
        def effect() -> None:
            found = self._get(container)
            if found.state == "created":
                self._machine.launch(found)

        await self._call("start", effect, changes=True)

    async def inspect(self, container: str) -> ContainerState | None:
        def effect() -> ContainerState | None:
            found = self._machine.containers.get(container)
            return None if found is None else self._state(found)

        found: ContainerState | None = await self._call("inspect", effect)
        return found

    async def containers(self, labels: Mapping[str, str]) -> tuple[ContainerState, ...]:
        def effect() -> tuple[ContainerState, ...]:
            return tuple(
                self._state(c)
                for c in self._machine.containers.values()
                if all(c.spec.labels.get(k) == v for k, v in labels.items())
            )

        found: tuple[ContainerState, ...] = await self._call("list", effect)
        return found

    def _state(self, container: Container) -> ContainerState:
        process = container.process
        alive = process is not None and process.alive
        if process is not None and not alive and container.conmon and container.state in RUNNING:
            container.state = "exited"
        return ContainerState(
            id=container.id,
            name=container.spec.name,
            state=container.state,
            labels=dict(container.spec.labels),
            image_id=container.spec.image,
            pid=None if process is None or container.state not in RUNNING else process.pid,
            conmon_pid=1,
            conmon_alive=container.conmon,
            alive=alive,
            exit_code=process.code if process is not None and container.conmon else None,
            started_at=None if process is None else process.started,
        )

    async def stop(self, container: str, timeout: float, *, limit: float | None = None) -> None:
        def ask() -> bool:
            found = self._get(container)
            process = found.process
            if process is not None:
                process.ask_to_end()
                found.state = "stopping" if process.alive else found.state
            return process is None or not process.alive

        def force() -> None:
            found = self._machine.containers.get(container)
            if found is not None and found.process is not None and not found.process.end(137):
                raise PodmanFailed("the process does not end")

        if not await self._call("stop", ask, changes=True):
            await self._call("stop", force, seconds=timeout)

    async def remove(self, container: str) -> bool:
        def effect() -> bool:
            found = self._machine.containers.pop(container, None)
            if found is not None and found.process is not None:
                found.process.end(137)
            return found is not None

        return bool(await self._call("remove", effect, changes=True))

    async def kill(self, container: str, signal: str = "SIGKILL") -> bool:
        def effect() -> bool:
            found = self._machine.containers.get(container)
            return found is not None and found.process is not None and found.process.end(137)

        return bool(await self._call("kill", effect, changes=True))

    async def logs(self, container: str, *, tail: int, follow: bool) -> AsyncIterator[LogLine]:
        await self._call("logs", lambda: None)
        yield LogLine("stderr", "last words")
