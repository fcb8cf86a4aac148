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
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from unittest import mock

import structlog

from orchestrator import engine as engine_module
from orchestrator import proof
from orchestrator import steps as steps_module
from orchestrator.context import Cause
from orchestrator.engine import Engine
from orchestrator.errors import MEMORY_GUARD, EngineFailed, OutriderError
from orchestrator.events import Journal
from orchestrator.flight import Outcome
from orchestrator.lifecycle import BIRTH, allowed
from orchestrator.plan import Plan
from orchestrator.stopping import clearing
from orchestrator.views import Desired, Event, State
from tests.history import ending, planner
from tests.history import engines as engines_module
from tests.history import machine as machine_module
from tests.history.checks import Checks
from tests.history.daemon import Daemon, World
from tests.history.database import Database
from tests.history.gateway import Front, Request
from tests.history.machine import FLAWS, Machine, Process
from tests.history.planner import KINDS
from tests.history.virtual_time import WALL, HotLoop, VirtualLoop

MODELS = tuple(KINDS)
SOON = 0.3
LOOK = 10.0
"""Seconds after which it is looked again, if nothing happens meanwhile."""
FATES = ("dies", "never", "wrong", "cut_off")
"""Of a process that is launched: it ends while it loads, never loads, answers wrong, its port leads nowhere."""
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
        self.wrong = self.machine.wrong
        self.requests: list[Request] = []
        self.front = Front(self.machine)
        self.checks = Checks(self)
        self.front.broken = self.checks.broken
        self.machine.launched = self._launched
        self.machine.ended = self.front.process_ended
        self.machine.leaving = self._leaving
        self._numbers, self._ids = itertools.count(1), itertools.count(1)
        self._patches: list[Any] = [
            mock.patch.object(engine_module, "ExitWatch", self._watch),
            mock.patch.object(engine_module.Engine, "move", self._moved(Engine.move)),
            mock.patch.object(steps_module, "new_id", self._new_id),
            mock.patch("random.uniform", self.chance.uniform),
            mock.patch.object(clearing, "kill", self.machine.kill),
            mock.patch.object(clearing, "with_states", tuple),
            mock.patch.object(proof, "prove", engines_module.prove),
            mock.patch("orchestrator.runner.validate", _allowed),
            mock.patch("orchestrator.runner.listens", self._listens),
            mock.patch.object(Plan, "digest", property(self._digest(Plan.digest.fget))),  # type: ignore[attr-defined]
            mock.patch.object(Journal, "emit", self._emitted(Journal.emit)),
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
            with suppress(HotLoop):  # it was told already
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

    def _emitted(self, emit: Callable[..., Event]) -> Callable[..., Event]:
        def emitting(*values: Any, **more: Any) -> Event:
            event = emit(*values, **more)
            if values[0] is self._journal():
                self.checks.emitted(event)
            return event

        return emitting

    def _digest(self, made: Callable[[Plan], str]) -> Callable[[Plan], str]:
        """Made once a plan: a third of a history's time goes there."""
        known: dict[int, tuple[Plan, str]] = {}

        def digest(plan: Plan) -> str:
            if id(plan) not in known:
                known[id(plan)] = plan, made(plan)
            return known[id(plan)][1]

        return digest

    def _journal(self) -> Journal | None:
        return self.daemon.journal if hasattr(self, "daemon") else None

    def _leaving(self) -> Collection[str]:
        return self.daemon.adopter.leftovers

    def _launched(self, process: Process) -> None:
        self.checks.launched(process)

    def _listens(self, pid: int, port: int) -> bool | None:
        process = self.machine.process(pid)
        return process is not None and process.alive and process.loaded(self.machine.now)

    def paused(self, name: str) -> bool:
        """Whether a person told the daemon to keep its hands off, and it knows."""
        return bool({name, "*"} & set(self.database.paused)) and self.daemon.context.automation.paused(name) is not None

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
        self.checks.look()
        if self.wrong:
            raise Wrong("\n".join(["", *self.wrong[:5], "after:", *self.told[-30:], "journal:", *self.story(40)]))

    def look_at_state(self, one: Engine) -> None:
        """That nobody moved an engine but by `move`."""
        if self.states.get(one.id, one.state) is not one.state and one.state not in BIRTH:
            self.wrong.append(f"{one.name} is {one.state}, and went to {self.states[one.id]}")

    def story(self, lines: int) -> list[str]:
        """The newest of the journal, without what the folder's name makes different."""
        owner = self.daemon.context.paths.owner[:8]
        recent = list(self.daemon.journal._recent)[-lines:]
        return [f"  {e.at - WALL:.2f} {e.code}: {e.text}".replace(owner, "owner") for e in recent]

    # what people ask

    async def _ask(self, what: Callable[[], Awaitable[object]], name: str, wish: Desired | None = None) -> None:
        """As an API call: it may be refused, and it may not be waited for to the end."""
        self.checks.asked(name)
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

    async def on_demand(self, name: str) -> None:
        verbs = self.daemon.verbs
        await self._ask(lambda: verbs.set_desired(name, Desired.ON_DEMAND, author="p"), name, Desired.ON_DEMAND)

    async def pause(self, name: str | None) -> None:
        with suppress(OutriderError):
            await self.daemon.pausing.pause(name, "p")

    async def resume(self, name: str | None) -> None:
        with suppress(OutriderError):
            await self.daemon.pausing.resume(name, "p")
        self.checks.resumed()

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
        await self._ask(lambda: actor.define(planner.entry(name), Cause("reload", "configuration")), name)

    async def govern(self, name: str, speculate: bool) -> None:
        """The governor takes speculation off, or back."""
        actor = self.daemon.registry.get(name)
        if actor.deployment.serving_engine is not None and not self.paused(name):
            cause = Cause("governor", "governor", automatic=True)
            await self._ask(lambda: actor.replan(cause, speculate=speculate), name)

    async def wait_for_start(self, name: str) -> None:
        """Three callers ask for it at once, and wait for what becomes of it."""
        actor = self.daemon.registry.get(name)
        await self.start(name)
        self.asked += [asyncio.ensure_future(actor.outcome()) for _ in range(3)]

    async def request(self, name: str, seconds: float) -> None:
        """Somebody talks to it."""
        self.requests = [r for r in self.requests if r.ended is None]
        self.requests.append(self.front.arrive(name, seconds))

    async def renew(self, name: str) -> None:
        """Its port is to be another one."""
        actor = self.daemon.registry.get(name)
        engine = actor.deployment.serving_engine
        if engine is not None:
            await self._ask(lambda: actor.renew(engine.generation), name)

    # what goes wrong

    def _processes(self, name: str) -> list[Process]:
        return [p for p in self.machine.processes if p.deployment == name and p.alive]

    async def crash(self, name: str) -> None:
        for process in self._processes(name):
            process.end(139, fault=True)

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

    async def hang(self, name: str) -> None:
        """It answers nothing any more; a while later its health says so."""
        for process in self._processes(name):
            process.hung = True

    async def flaw(self, name: str, which: str) -> None:
        """From now on some launches of it fail, and go on failing when all else is well."""
        self.machine.flaws[name] = which

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
                process.end(137, fault=True)

    async def keep_memory(self, keeps: bool) -> None:
        """The driver does not give back what ends from now on; or it gives all back."""
        self.machine.keeps = keeps
        if not keeps:
            self.machine.healed = self.machine.now
            for process in self.machine.processes:
                process.kept = {}

    async def podman(self, how: str) -> None:
        self.checks.disturbed()
        self.machine.podman = how

    async def lose_answers(self, number: int) -> None:
        self.checks.disturbed()
        self.machine.lost_answers = number

    async def kill_conmon(self, name: str) -> None:
        for container in self.machine.containers.values():
            if container.spec.labels["io.outrider.deployment"] == name:
                container.conmon = False

    async def fill_disk(self, full: bool) -> None:
        self.database.full = full
        self.database.was_full_after = self.machine.now if full else self.database.was_full_after

    async def kill_daemon(self) -> None:
        """And start the next one, as systemd does."""
        await self.daemon.kill()
        self._lose_callers()
        self.checks.daemon_died()
        self.daemon = await self._born()
        self.checks.daemon_born()

    async def end_daemon(self) -> None:
        await self.daemon.end()
        self._lose_callers()
        self.checks.daemon_died()
        self.daemon = await self._born()
        self.checks.daemon_born()

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
        world = World(self.machine, self.database, self.front, self.folder / "s", self.taste)
        return await Daemon.born(world, next(self._numbers))

    async def time_passes(self, seconds: float) -> None:
        end = self.machine.now + seconds
        while end - self.machine.now > LOOK:
            await asyncio.sleep(LOOK)
            self.look()
        await asyncio.sleep(max(0.0, end - self.machine.now))

    # the end of it

    def finish(self) -> None:
        """All faults end, and people ask once more for what they want: then it has to come about."""
        self.loop.run_until_complete(self._finish())

    async def _finish(self) -> None:
        self.machine.heal()
        if self.database.full:
            await self.fill_disk(False)
            self.database.was_full_after = self.machine.now
        self.told.append(f"{self.machine.now:.3f} healed")
        await self.time_passes(120.0)
        await self.resume(None)
        for name, wish in sorted(self.wishes.items()):
            await self._ask(
                lambda name=name, wish=wish: self.daemon.verbs.set_desired(name, wish, author="again"),  # type: ignore[misc]
                name,
                wish,
            )
        self.wrong += await ending.settle(self)
        self.look()


def _allowed(*_: object) -> None:
    """In the place of the validator of specs, whose rules are about paths and options."""


def _nowhere(*_: object) -> Any:
    return structlog.PrintLogger()


HAPPENINGS: dict[str, tuple[int, Callable[[random.Random], tuple[Any, ...]]]] = {
    "start": (14, lambda dice: (dice.choice(MODELS),)),
    "stop": (6, lambda dice: (dice.choice(MODELS),)),
    "on_demand": (12, lambda dice: (dice.choice(MODELS),)),
    "pause": (2, lambda dice: (dice.choice([*MODELS, None]),)),
    "resume": (3, lambda dice: (dice.choice([*MODELS, None, None, None]),)),
    "restart": (3, lambda dice: (dice.choice(MODELS),)),
    "apply": (2, lambda dice: (dice.choice(MODELS),)),
    "drain": (1, lambda dice: (dice.choice(MODELS),)),
    "reconfigure": (4, lambda dice: (dice.choice(MODELS),)),
    "govern": (4, lambda dice: (dice.choice(MODELS), dice.random() < 0.4)),
    "wait_for_start": (3, lambda dice: (dice.choice(MODELS),)),
    "request": (22, lambda dice: (dice.choice(MODELS), dice.choice([1.0, 1.0, 20.0, 20.0, 400.0]))),
    "renew": (1, lambda dice: (dice.choice(MODELS),)),
    "crash": (5, lambda dice: (dice.choice(MODELS),)),
    "guard": (2, lambda dice: (dice.choice(MODELS),)),
    "not_live": (3, lambda dice: (dice.choice(MODELS),)),
    "doom": (5, lambda dice: (dice.choice(FATES),)),
    "flaw": (5, lambda dice: (dice.choice(MODELS), dice.choice([*FLAWS]))),
    "hang": (2, lambda dice: (dice.choice(MODELS),)),
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


AGAIN = "from tests.history.history import played; played({}, {})"
"""Plays a history again."""


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
        except (Wrong, HotLoop) as error:
            raise Wrong(f"history {seed} ({steps} steps; {AGAIN.format(seed, steps)}): {error}") from None
        return [*history.told, *history.story(2000)]
