"""A history: what people ask, what goes wrong, daemons that come and go; and what must hold through all of it.

`History` is driven by `test_histories` (hypothesis) and, from a number alone, by `played`. Each thing that may happen
is a method; after each, and whenever a process takes memory, it is looked whether something is that must never be.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
import tempfile
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from unittest import mock

import structlog

from orchestrator import engine as engine_module
from orchestrator import proof
from orchestrator import steps as steps_module
from orchestrator.actor import Actor
from orchestrator.context import Cause
from orchestrator.deployment import Deployment
from orchestrator.engine import Engine
from orchestrator.errors import MEMORY_GUARD, EngineFailed, OutriderError
from orchestrator.flight import Outcome
from orchestrator.lifecycle import BIRTH, allowed
from orchestrator.stopping import clearing
from orchestrator.views import Desired, State
from tests.history import daemon as daemon_module
from tests.history import machine as machine_module
from tests.history.daemon import KINDS, Daemon, Database
from tests.history.machine import GPUS, SIZES, Machine, Process
from tests.history.virtual_time import WALL, VirtualLoop

MODELS = tuple(KINDS)
SOON = 0.3
SETTLING = 1500.0
"""Seconds of made-up time after the last fault in which everything has to be as it should be."""
DEFECTS = frozenset({"invariant_broken", "step_crashed", "start_crashed", "actor_crashed", "host_not_read"})


class Wrong(AssertionError):
    """Something was that must never be."""


class History:
    """One history, on a loop of its own. `close` it."""

    def __init__(self, seed: int = 0) -> None:
        self.loop = VirtualLoop()
        self.machine = Machine(self.loop)
        self.database = Database()
        self.chance = random.Random(seed)
        self.folder = Path(tempfile.mkdtemp(prefix="oh-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.taste: dict[str, int] = {}
        self.wishes: dict[str, Desired] = {}
        """What people asked for last, as far as they were told that it was taken."""
        self.unsure: set[str] = set()
        """Of which nobody can know: the daemon died, or the disk was full, while they asked."""
        self.asked: list[asyncio.Task[Outcome]] = []
        self.states: dict[str, State] = {}
        self.told: list[str] = []
        """What happened, in order: a history that is played again tells the same."""
        self.was_full = False
        """Whether the disk was: rows that could not be removed then may be left."""
        self.wrong = self.machine.wrong
        self._numbers, self._ids = itertools.count(1), itertools.count(1)
        self._patches: list[Any] = [
            mock.patch.object(engine_module, "ExitWatch", self._watch),
            mock.patch.object(engine_module.Engine, "move", self._moved(Engine.move)),
            mock.patch.object(steps_module, "new_id", self._new_id),
            mock.patch("random.uniform", self.chance.uniform),
            mock.patch.object(clearing, "kill", self.machine.kill),
            mock.patch.object(clearing, "with_states", tuple),
            mock.patch.object(proof, "prove", daemon_module.prove),
            mock.patch("orchestrator.runner.validate", _allowed),
        ]
        for patch in self._patches:
            patch.start()
        self._log = structlog.get_config()
        structlog.configure(processors=[self._heard], logger_factory=_nowhere, cache_logger_on_first_use=False)
        self.daemon = self.loop.run_until_complete(self._born())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        for patch in reversed(self._patches):
            patch.stop()
        structlog.configure(**self._log)
        try:
            self.loop.run_until_complete(self._all_ended())
        finally:
            self.loop.close()
            run = self.daemon.context.paths.run_dir
            shutil.rmtree(self.folder, ignore_errors=True)
            shutil.rmtree(run.resolve(), ignore_errors=True)

    async def _all_ended(self) -> None:
        rest = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        for _ in range(3):
            for task in rest:
                task.cancel()
            await asyncio.sleep(0)
        await asyncio.wait(rest, timeout=1) if rest else None

    # seams

    def _new_id(self) -> str:
        return f"{next(self._ids):016x}"

    def _watch(self, pid: int, ended: Callable[[], None]) -> Any:
        return machine_module.Watch(self.machine, pid, ended)

    def _moved(self, move: Callable[[Engine, State], None]) -> Callable[[Engine, State], None]:
        def moving(engine: Engine, state: State) -> None:
            before = self.states.get(engine.id, engine.state)
            if before is not engine.state and not (state is engine.state or engine.state in BIRTH):
                self.wrong.append(f"{engine.name} went from {before} to {engine.state} behind the table's back")
            if not allowed(engine.state, state):
                self.wrong.append(f"{engine.name}: {engine.state} -> {state}")
            move(engine, state)
            self.states[engine.id] = state

        return moving

    def _heard(self, _: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        name = str(event.get("event"))
        if method in ("error", "critical", "exception") or name in DEFECTS:
            trace = event.get("exc_info")
            self.wrong.append(f"{name}: { {k: v for k, v in event.items() if k != 'event'} } {trace!r}")
        raise structlog.DropEvent

    # one thing after the other

    def do(self, name: str, *values: Any, then: float = 0.0) -> None:
        """Let something happen, and `then` seconds pass."""
        self.told.append(f"{self.machine.now:.3f} {name} {values}")
        self.loop.run_until_complete(self._do(getattr(self, name), values, then))

    async def _do(self, happening: Callable[..., Awaitable[None]], values: tuple[Any, ...], then: float) -> None:
        await happening(*values)
        await asyncio.sleep(then)
        self.look()

    def look(self) -> None:
        """What must hold at any moment."""
        for device, size in SIZES.items():
            promised = sum(c.size for c in self.daemon.admission.promised().values() if device in c.devices)
            if promised > size:
                self.wrong.append(f"{promised} bytes of {device} are promised, and it has {size}")
        for actor in self.daemon.registry.all():
            self._look_at(actor)
        if self.wrong:
            raise Wrong("\n".join(["", *self.wrong[:5], "after:", *self.told[-30:], "journal:", *self.story(40)]))

    def _look_at(self, actor: Actor) -> None:
        d = actor.deployment
        engine = d.serving_engine
        for one in d.engines:
            if self.states.get(one.id, one.state) is not one.state and one.state not in BIRTH:
                self.wrong.append(f"{one.name} is {one.state}, and went to {self.states[one.id]}")
        route = d.route(self.machine.now)
        admitting = [e.generation for e in route.engines if e.admit]
        if len(admitting) > 1 or (admitting and (engine is None or admitting != [engine.generation])):
            self.wrong.append(f"{d.name} admits at {admitting}, and {d.serving} serves")
        if d.name in self.wishes and d.name not in self.unsure and d.desired is not self.wishes[d.name]:
            self.wrong.append(f"{d.name} is to be {self.wishes[d.name]}, and {d.desired} is desired")

    def story(self, lines: int) -> list[str]:
        """The newest of the journal, without what the folder's name makes different."""
        owner = self.daemon.context.paths.owner[:8]
        recent = list(self.daemon.journal._recent)[-lines:]
        return [f"  {e.at - WALL:.2f} {e.code}: {e.text}".replace(owner, "owner") for e in recent]

    # what people ask

    async def _ask(self, what: Callable[[], Awaitable[object]], name: str, wish: Desired | None = None) -> None:
        """As an API call: it may be refused, and it may not be waited for to the end."""
        if wish is not None:
            self.unsure.add(name)
        asking = asyncio.ensure_future(what())
        done, _ = await asyncio.wait([asking], timeout=SOON)
        if not done:
            asking.add_done_callback(lambda task: task.cancelled() or task.exception())
            return
        error = asking.exception()
        if error is None and wish is not None:
            self.wishes[name] = wish
            self.unsure.discard(name)
        if error is not None and not isinstance(error, OutriderError):
            self.wrong.append(f"a verb crashed: {error!r}")

    async def start(self, name: str) -> None:
        verbs = self.daemon.verbs
        await self._ask(lambda: verbs.set_desired(name, Desired.RUNNING, author="p"), name, Desired.RUNNING)

    async def stop(self, name: str) -> None:
        verbs = self.daemon.verbs
        await self._ask(lambda: verbs.set_desired(name, Desired.STOPPED, author="p"), name, Desired.STOPPED)

    async def restart(self, name: str) -> None:
        await self._ask(lambda: self.daemon.verbs.restart(name, author="p"), name)

    async def apply(self, name: str) -> None:
        await self._ask(lambda: self.daemon.verbs.apply(name, author="p"), name)

    async def drain(self, name: str) -> None:
        await self._ask(lambda: self.daemon.verbs.drain(name, author="p"), name)

    async def reconfigure(self, name: str) -> None:
        """Its configuration changed in what it launches."""
        self.taste[name] = self.taste.get(name, 0) + 1
        actor = self.daemon.registry.get(name)
        await self._ask(lambda: actor.define(daemon_module.entry(name), Cause("reload", "configuration")), name)

    async def govern(self, name: str, speculate: bool) -> None:
        """The governor takes speculation off, or back."""
        actor = self.daemon.registry.get(name)
        if actor.deployment.serving_engine is not None:
            cause = Cause("governor", "governor", automatic=True)
            await self._ask(lambda: actor.replan(cause, speculate=speculate), name)

    async def wait_for_start(self, name: str) -> None:
        """Three callers ask for it at once, and wait for what becomes of it."""
        actor = self.daemon.registry.get(name)
        await self.start(name)
        self.asked += [asyncio.ensure_future(actor.outcome()) for _ in range(3)]

    async def request(self, name: str, seconds: float) -> None:
        """Somebody talks to it."""
        engine = self.daemon.registry.get(name).deployment.serving_engine
        if engine is not None and engine.admit and engine.state is State.READY:
            self.daemon.gateway.requests.setdefault(engine.id, []).append(self.machine.now + seconds)

    # what goes wrong

    def _processes(self, name: str) -> list[Process]:
        return [p for p in self.machine.processes if p.deployment == name and p.alive]

    async def crash(self, name: str) -> None:
        for process in self._processes(name):
            process.end(139)

    async def guard(self, name: str) -> None:
        """Memory is short, and it goes first."""
        actor = self.daemon.registry.get(name)
        for engine in actor.deployment.live():
            if engine.pid is not None and not engine.exited.is_set():
                actor.end_engine(engine, EngineFailed(MEMORY_GUARD, "memory is short", retryable=True))

    async def not_live(self, name: str) -> None:
        """Its health says that it does not live, or its GPU is lost."""
        actor = self.daemon.registry.get(name)
        generations = {e.generation for e in actor.deployment.live()}
        verdict = EngineFailed("engine_stalled", "no tokens", retryable=True)
        await self._ask(lambda: actor.fail_engines(generations, verdict), name)

    async def doom(self, fate: str) -> None:
        """What becomes of the next process."""
        self.machine.fates.append(fate)

    async def deafen(self, name: str) -> None:
        for process in self._processes(name):
            process.deaf = True

    async def stick(self, name: str) -> None:
        """It hangs in the driver: it loads no further, and nothing ends it."""
        for process in self._processes(name):
            if not process.stuck:
                process.stuck, process.fate = True, process.fate if process.loaded(self.machine.now) else "never"
                process.size = {d: process.bytes_on(d, self.machine.now) for d in process.size}
                process.load_s = 0.0

    async def unstick(self, name: str) -> None:
        for process in self._processes(name):
            if process.stuck:
                process.stuck = False
                process.end(137)

    async def keep_memory(self, keeps: bool) -> None:
        """The driver does not give back what ends from now on; or it gives all back."""
        self.machine.keeps = keeps
        if not keeps:
            for process in self.machine.processes:
                process.kept = {}

    async def podman(self, how: str) -> None:
        self.machine.podman = how

    async def lose_answers(self, number: int) -> None:
        self.machine.lost_answers = number

    async def kill_conmon(self, name: str) -> None:
        for container in self.machine.containers.values():
            if container.spec.labels["io.outrider.deployment"] == name:
                container.conmon = False

    async def fill_disk(self, full: bool) -> None:
        self.database.full = full
        self.was_full |= full

    async def kill_daemon(self) -> None:
        """And start the next one, as systemd does."""
        await self.daemon.kill()
        self._lose_callers()
        self.daemon = await self._born()

    async def end_daemon(self) -> None:
        await self.daemon.end()
        self._lose_callers()
        self.daemon = await self._born()

    def _lose_callers(self) -> None:
        """Who talked to that daemon hears no more of it. Of what was asked while it died, what the database has
        counts."""
        for task in self.asked:
            task.cancel()
        self.asked.clear()
        for name in self.unsure & set(self.database.rows):
            self.wishes[name] = self.database.rows[name].desired
        self.wishes = {name: wish for name, wish in self.wishes.items() if name in self.database.rows}
        self.unsure.clear()

    async def _born(self) -> Daemon:
        return await Daemon.born(self.machine, self.database, self.folder / "s", next(self._numbers), self.taste)

    async def time_passes(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    # the end of it

    def finish(self) -> None:
        """All faults end, and people ask once more for what they want: then it has to come about."""
        self.loop.run_until_complete(self._finish())

    async def _finish(self) -> None:
        self.machine.heal()
        self.database.full = False
        self.told.append(f"{self.machine.now:.3f} healed")
        await asyncio.sleep(120.0)
        for name, wish in sorted(self.wishes.items()):
            await self._ask(
                lambda name=name, wish=wish: self.daemon.verbs.set_desired(name, wish, author="again"),  # type: ignore[misc]
                name,
                wish,
            )
        await asyncio.sleep(SETTLING)
        self.look()
        for actor in self.daemon.registry.all():
            self._come_about(actor)
        self._nothing_left()
        self.look()

    def _come_about(self, actor: Actor) -> None:
        d = actor.deployment
        wish = self.wishes.get(d.name, d.desired)
        if wish is Desired.STOPPED and d.engines:
            self.wrong.append(f"{d.name} is to be stopped, and has {[(e.name, e.state) for e in d.engines]}")
        if wish is Desired.RUNNING and (d.serving_engine is None or len(d.engines) != 1):
            room = self._has_room(d)
            if room or d.reason is None or d.reason.code != "too_big":
                found = [(e.name, e.state.value) for e in d.engines]
                self.wrong.append(f"{d.name} is to run: {found}, {d.reason}, {d.failures}, stuck {d.stuck_until}")

    def _has_room(self, d: Deployment) -> bool:
        """Whether there is memory for its plan (what has served waits for its own devices), or for a new one."""
        admission, kind = self.daemon.admission, KINDS[d.name]
        if d.wanted is not None:
            return (admission.free_for(d.wanted) or 0) >= d.wanted.expected_memory.total
        needed = kind.size - (0 if d.speculate else 3 * machine_module.GIB)
        free = sorted((admission.free([gpu]) or 0 for gpu in GPUS), reverse=True)
        return (free[kind.gpus - 1] if kind.gpus else admission.free(["host"]) or 0) >= needed

    def _nothing_left(self) -> None:
        engines = {e.id: e for a in self.daemon.registry.all() for e in a.deployment.engines}
        containers = {e.container_id for e in engines.values()}
        for container in self.machine.containers.values():
            if container.id not in containers:
                self.wrong.append(f"{container.spec.name} ({container.state}) is nobody's")
        for process in self.machine.processes:
            if process.alive and process.container not in containers:
                self.wrong.append(f"process {process.pid} of {process.deployment}-{process.generation} is nobody's")
        for engine in self.daemon.admission.claims():
            if engine not in engines:
                self.wrong.append(f"memory is promised to {engine}, which is no engine")
        if self.daemon.admission.queues.lines():
            self.wrong.append(f"in the queues: {self.daemon.admission.queues.lines()}")
        if self.daemon.quarantine.held:
            self.wrong.append(f"left alone: {list(self.daemon.quarantine.held)}")
        for file in self.daemon.context.paths.engines.iterdir():
            if file.name.removesuffix(".key") not in engines:
                self.wrong.append(f"{file.name} is nobody's")
        rest = set(self.database.engines) - set(engines)
        if rest and not self.was_full:
            self.wrong.append(f"rows of engines that are gone: {rest}")
        waiting = [task for task in self.asked if not task.done()]
        if waiting:  # three to one start
            self.wrong.append(f"{len(waiting)} still wait to hear of a start")
        known = {"journal", "reconcile", "telemetry", *(f"actor-{name}" for name in MODELS)}
        others = [name for name in self.daemon.tasks() if name not in known]
        if others:
            self.wrong.append(f"tasks that have not ended: {others}")


def _allowed(*_: object) -> None:
    """In the place of the validator of specs, whose rules are about paths and options."""


def _nowhere(*_: object) -> Any:
    return structlog.PrintLogger()


HAPPENINGS: dict[str, tuple[int, Callable[[random.Random], tuple[Any, ...]]]] = {
    "start": (14, lambda dice: (dice.choice(MODELS),)),
    "stop": (6, lambda dice: (dice.choice(MODELS),)),
    "restart": (3, lambda dice: (dice.choice(MODELS),)),
    "apply": (2, lambda dice: (dice.choice(MODELS),)),
    "drain": (1, lambda dice: (dice.choice(MODELS),)),
    "reconfigure": (4, lambda dice: (dice.choice(MODELS),)),
    "govern": (4, lambda dice: (dice.choice(MODELS), dice.random() < 0.4)),
    "wait_for_start": (3, lambda dice: (dice.choice(MODELS),)),
    "request": (5, lambda dice: (dice.choice(MODELS), dice.choice([1.0, 20.0, 400.0]))),
    "crash": (5, lambda dice: (dice.choice(MODELS),)),
    "guard": (2, lambda dice: (dice.choice(MODELS),)),
    "not_live": (3, lambda dice: (dice.choice(MODELS),)),
    "doom": (5, lambda dice: (dice.choice(["dies", "never", "wrong"]),)),
    "deafen": (2, lambda dice: (dice.choice(MODELS),)),
    "stick": (3, lambda dice: (dice.choice(MODELS),)),
    "unstick": (2, lambda dice: (dice.choice(MODELS),)),
    "keep_memory": (2, lambda dice: (dice.random() < 0.5,)),
    "podman": (4, lambda dice: (dice.choice(["gone", "silent", "there", "there", "there"]),)),
    "lose_answers": (2, lambda dice: (dice.choice([1, 2]),)),
    "kill_conmon": (1, lambda dice: (dice.choice(MODELS),)),
    "fill_disk": (2, lambda dice: (dice.random() < 0.4,)),
    "kill_daemon": (4, lambda _: ()),
    "end_daemon": (2, lambda _: ()),
    "time_passes": (12, lambda dice: (dice.choice([0.05, 0.6, 3.0, 12.0, 45.0, 200.0]),)),
}
"""What may happen: how often, and with what."""


def played(seed: int, steps: int = 40) -> list[str]:
    """The history of this number, to its end; what happened in it. Raises `Wrong`."""
    dice = random.Random(seed)
    names, weights = list(HAPPENINGS), [weight for weight, _ in HAPPENINGS.values()]
    with History(seed) as history:
        try:
            for _ in range(steps):
                name = dice.choices(names, weights)[0]
                history.do(name, *HAPPENINGS[name][1](dice), then=dice.choice([0.0, 0.011, 0.05, 0.3, 1.0]))
            history.finish()
        except Wrong as error:
            raise Wrong(f"history {seed} ({steps} steps): {error}") from None
        return [*history.told, *history.story(2000)]
