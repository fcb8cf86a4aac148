"""The one task that owns a deployment: a mailbox, and one step at a time.

Messages only change what is asked for; `lifecycle.decide` then says the next step, and one
step runs at a time. A stop aborts a start that is in flight: the step is cancelled, and what
it left is found and taken down by the next decision.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import structlog

from orchestrator import backoff, lifecycle
from orchestrator.context import Cause, Context
from orchestrator.decision import Decision
from orchestrator.defects import Defects
from orchestrator.demand.unloading import Leaving
from orchestrator.deployment import Deployment
from orchestrator.engine import Engine
from orchestrator.errors import EngineFailed, OutriderError
from orchestrator.flight import DAEMON_ENDS, Flight, Outcome, landed
from orchestrator.lifecycle import ADMITTING, COMING, Step
from orchestrator.models import ModelEntry
from orchestrator.plan import Method, Planned
from orchestrator.steps import Steps
from orchestrator.views import DeploymentView, Desired, State, Why

log = structlog.get_logger("actor")
ABORTABLE = frozenset({Step.PLAN, Step.START, Step.CONTINUE, Step.SWITCH})


@dataclass(slots=True)
class Message:
    """A change of what is asked for, and who waits to hear that it was taken."""

    change: Callable[[], None]
    taken: asyncio.Future[None]


class Actor:
    """Owns one `Deployment`. All public coroutines may be called from the same loop."""

    def __init__(self, deployment: Deployment, context: Context) -> None:
        self.deployment = deployment
        self._context = context
        self.asked = asyncio.Lock()
        """Held by whoever notes a wish until it is taken: the database and the actor hear wishes in one order."""
        self._steps = Steps(deployment, context, self.publish, self._engine_exited)
        self._mailbox: asyncio.Queue[Message] = asyncio.Queue()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._running = False
        self._work: asyncio.Task[None] | None = None
        self._step: Decision[Step] | None = None
        self._replan: Cause | None = None
        self._retire: set[int] = set()
        self._flight = Flight()
        self._defects = Defects(deployment.name, context.journal)
        self._waits = False
        """It was told that it waits for a device."""
        self._cut = False
        """An engine was failed from outside: a step that brings it up is called off."""

    # what may be asked

    async def set_desired(self, desired: Desired, author: str, *, force: bool = False) -> None:
        """What a person asked for. Asking to run what failed is also the person's "try again now"; with
        `force` in spite of a suspicion too."""

        def change() -> None:
            d = self.deployment
            self._context.turns.leave(d.name)
            if force:
                d.suspicion, d.wanted = None, d.wanted if d.serving_engine is not None else None
            if desired is Desired.STOPPED:
                self._context.needs.no_longer(d.name)
                self._steps.ladder.forget()
            d.desired, d.desired_by = desired, author
            d.drained = False
            d.stuck_until = None
            for engine in d.engines:
                engine.again_at = None
            d.called, d.leaving = bool(d.live()), None
            if desired is not Desired.STOPPED and d.serving_engine is None and not self._starting():
                d.failures = backoff.Failures()
                d.reason = None
                if not d.loading and self._steps.ladder.up("start", author):
                    d.wanted = None

        await self._ask(change)

    def begin(self) -> None:
        """A daemon begins, and what runs is adopted. Once, before `run`."""
        self._steps.ladder.begin()

    async def outcome(self) -> Outcome:
        """How the start that is on its way ends; after `set_desired`. Any number may wait: there is one start, and
        all hear the same. Whoever stops waiting changes nothing."""
        self.wake()
        return await self._flight.join()

    def _starting(self) -> bool:
        """Whether a step that brings an engine up is in hand."""
        return self._work is not None and self._step is not None and self._step.action in ABORTABLE

    def call(self, tell: Callable[[], None]) -> None:
        """A request waits for it. Takes effect in the next round; nobody is kept waiting for that. `tell` is called
        then, once, however many ask before."""

        def change() -> None:
            d = self.deployment
            if d.called or d.desired is not Desired.ON_DEMAND or self._context.demand.uncallable(d) is not None:
                return
            tell()
            d.called, d.leaving = True, None

        self._tell(change)

    def give_up(self) -> None:
        """Nobody waits for it any more, and it has not come."""

        def change() -> None:
            if not self.deployment.live():
                self.deployment.called = False

        self._tell(change)

    async def let_go(self, leaving: Leaving) -> None:
        """Unload what serves, unless it is in use: it was idle, or another needs its room. `desired` stays."""

        def change() -> None:
            d = self.deployment
            engine = d.serving_engine
            if d.desired is Desired.ON_DEMAND and engine is not None and engine.state is State.READY and not d.busy:
                d.called, d.leaving = False, leaving

        await self._ask(change)

    async def restart(self) -> None:
        """Stop what runs and start it again with the same plan."""

        def change() -> None:
            self._context.turns.leave(self.deployment.name)
            self._retire |= {e.generation for e in self.deployment.live()}
            self.deployment.failures = backoff.Failures()
            self.deployment.drained = False
            self.deployment.restarts += 1

        await self._ask(change)

    async def renew(self, generation: int) -> None:
        """Put another engine of the same plan in the place of this one, which is not at fault: it is drained."""
        await self._ask(lambda: self._retire.add(generation))

    async def replan(self, cause: Cause, *, speculate: bool | None = None) -> None:
        """Make a new plan and move to it when it launches something else."""

        def change() -> None:
            if speculate is not None:
                self.deployment.speculate = speculate
            if not cause.automatic:
                self._steps.ladder.up(cause.reason, cause.by)
            self._replan = cause

        await self._ask(change)

    async def define(self, entry: ModelEntry, cause: Cause | None) -> None:
        """The configuration of the model changed; with a cause, in what it may launch."""

        def change() -> None:
            self.deployment.entry = entry
            self.deployment.fresh = None
            if cause is not None:
                self._steps.ladder.up(cause.reason, cause.by)
                self._replan = cause

        await self._ask(change)

    async def drain(self) -> None:
        """Admit nothing more; the engine stays."""

        def change() -> None:
            self.deployment.drained = True

        await self._ask(change)

    async def halt(self) -> None:
        """Stop the engines and leave `desired` as it is: the daemon is about to end."""

        def change() -> None:
            self.deployment.halted = True

        await self._ask(change)

    async def settled(self) -> None:
        """Wait until no engine is left."""
        while self.deployment.live() or self._work is not None:
            self._idle.clear()
            await self._idle.wait()

    def wait_for(self, container: str) -> None:
        """Start nothing while this container, which belongs to none of its engines, may run."""
        self._tell(lambda: self.deployment.remains.add(container))

    def wait_no_longer(self, container: str) -> None:
        """It has gone, or nobody can end it. Told even when that it is waited for was not heard yet."""
        self._tell(lambda: self.deployment.remains.discard(container))

    def end_engine(self, engine: Engine, verdict: EngineFailed) -> bool:
        """Kill an engine's process now, whatever its deployment is doing; the verdict is what its end is called.

        The memory guard's: it does not queue behind a step. False when we may not signal that process.
        """
        engine.verdict = verdict
        engine.admit = False
        return engine.watch is not None and engine.watch.kill()

    async def fail_engines(self, generations: Collection[int], verdict: EngineFailed) -> None:
        """These engines are of no use any more, whatever their processes do: what they run on is gone."""

        def change() -> None:
            d = self.deployment
            for engine in d.live():
                if engine.generation not in generations or engine.state not in COMING | ADMITTING:
                    continue
                engine.verdict, engine.admit = verdict, False
                engine.move(State.FAILED)
                self._cut = True
                if d.serving == engine.generation:
                    d.serving = None

        await self._ask(change)

    def rung(self, found: Planned) -> Planned:
        """The planner's answer with the plan of the rung that this deployment stands on."""
        return self._steps.ladder.choose(found)

    def wake(self) -> None:
        """Look again: an engine ended, or time passed."""
        self._wake.set()

    def _tell(self, change: Callable[[], None]) -> None:
        if not self._running:
            change()
            return
        self._mailbox.put_nowait(Message(change, asyncio.get_running_loop().create_future()))
        self._wake.set()

    async def _ask(self, change: Callable[[], None]) -> None:
        if not self._running:
            change()  # before adoption nobody reads the mailbox, and nothing can be in the way
            return
        taken = asyncio.get_running_loop().create_future()
        await self._mailbox.put(Message(change, taken))
        self._wake.set()
        await taken

    # the loop

    async def run(self) -> None:
        """For ever. Cancelling it leaves engines as they are: the next daemon adopts them. May be called again
        after a crash."""
        self._running, ended = True, False
        self._adopt_watches()
        try:
            while True:
                self._take_messages()
                self._notice_exits()
                decision = self._decide()
                if self._work is None:
                    self._tell_that_it_waits(decision)
                if self._work is None and decision.action not in (Step.SETTLED, Step.WAIT):
                    self._begin(decision)
                self.publish()
                self._tell_those_who_wait(decision)
                self._idle.set()
                await self._until_news(decision)
        except asyncio.CancelledError:
            ended = True
            raise
        finally:
            self._running = False
            try:
                if self._work is not None:
                    await _cancelled(self._work)
            finally:
                if ended:  # after a crash the engines' ends are still to be seen
                    for engine in self.deployment.engines:
                        engine.unfollow()
                self._take_messages()  # nobody is to wait for an answer that will not come
                self._flight.land(Outcome(why=Why(DAEMON_ENDS, "the daemon ends; it starts when the next one does")))

    def _tell_those_who_wait(self, decision: Decision[Step]) -> None:
        outcome = landed(self.deployment, decision, busy=self._work is not None) if self._flight.awaited else None
        if outcome is not None:
            self._flight.land(outcome)

    def _adopt_watches(self) -> None:
        for engine in self.deployment.engines:
            engine.on_exit = self._engine_exited

    def _engine_exited(self) -> None:
        """A process ended: its route goes in this very moment, the rest follows in the next round."""
        self.publish()
        self.wake()

    def _take_messages(self) -> None:
        while not self._mailbox.empty():
            message = self._mailbox.get_nowait()
            try:
                message.change()
            except Exception as error:  # a defect: whoever asked is not to wait for ever for what will not come
                if not message.taken.done():
                    message.taken.set_exception(error)
                raise
            if not message.taken.done():
                message.taken.set_result(None)

    def _notice_exits(self) -> None:
        """An engine that ended while it should run has failed; its route goes at once."""
        for engine in self.deployment.live():
            if engine.exited.is_set() and engine.state in (State.READY, State.DRAINING):
                engine.move(State.FAILED)
                if self.deployment.serving == engine.generation:
                    self.deployment.serving = None
                self._emit(
                    "engine_ended",
                    f"{engine.name} ended {'by itself' if engine.verdict is None else f'({engine.verdict.code})'}",
                    {"generation": engine.generation, "container": engine.container_id, "pid": engine.pid},
                )

    def _look_at_devices(self) -> None:
        """Whether the devices can be had. When they can again, what failed meanwhile says nothing any more."""
        d = self.deployment
        before, d.barred = d.barred, self._context.devices.bar(d)
        if before is not None and d.barred is None and not self._steps.ladder.waits_for_person:
            d.failures = backoff.Failures()
            if self._waits and d.should_run:
                self._emit("held_over", f"{d.name} may be started again")
            self._waits = False

    def _tell_that_it_waits(self, decision: Decision[Step]) -> None:
        """For a device, once nothing else is left to do: what failed was told before, and another GPU was asked for."""
        barred = self.deployment.barred
        if barred is None or self._waits or decision.action is not Step.WAIT or decision.reason != barred.code:
            return
        self._waits = True
        evidence = {"code": barred.code, "hint": barred.hint}
        self._emit("held", f"{self.deployment.name} is not started: {barred.text}", evidence)

    def _emit(self, code: str, text: str, evidence: Mapping[str, object] | None = None) -> None:
        name = self.deployment.name
        self._context.journal.emit("lifecycle", code, text, deployment=name, evidence=evidence or {})

    def take_turn(self) -> None:
        """Let the next one start when this one is through, and see who is before it."""
        d, turns = self.deployment, self._context.turns
        through = d.serving_engine or d.reason or d.suspicion or d.barred or d.remains or d.transfer
        if not d.should_run or through is not None:
            turns.leave(d.name)
        d.after = None if d.loading else turns.before(d.name)  # what is on its way is not stopped for its turn

    def _decide(self) -> Decision[Step]:
        d = self.deployment
        now = self._context.clock.now()
        if self._work is None and self._steps.ladder.look():
            self._replan = Cause("a_day_passed", "ladder", automatic=True)
        self._look_at_devices()
        d.uncallable = self._context.demand.uncallable(d)
        self.take_turn()
        if d.stuck_until is not None and d.stuck_until > now:
            return lifecycle.decide(d.situation(now))
        for generation in sorted(self._retire):
            engine = d.engine(generation)
            if engine is None or engine not in d.live() or engine.state is State.WEDGED:
                self._retire.discard(generation)
            elif d.should_run:
                return Decision(Step.STOP, "restart", {"generation": generation})
        elsewhere = self._steps.elsewhere.cause() if self._work is None else None
        self._replan = self._replan or elsewhere
        free = d.held is None or d.serving_engine or elsewhere
        if self._replan is not None and d.should_run and self._work is None and free:
            return Decision(Step.PLAN, self._replan.reason)
        return lifecycle.decide(d.situation(now))

    def _begin(self, decision: Decision[Step]) -> None:
        if self._defects.forbids(self.deployment.situation(self._context.clock.now()), decision):
            return
        cause, self._replan = (self._replan, None) if decision.action is Step.PLAN else (None, self._replan)
        self._step, self._cut = decision, False
        self.deployment.busy = True
        self._work = asyncio.create_task(
            self._steps.perform(decision, cause), name=f"{self.deployment.name}-{decision.action}"
        )
        self._work.add_done_callback(lambda _: self.wake())

    async def _until_news(self, decision: Decision[Step]) -> None:
        pause = self._context.timing.reconcile_period
        if decision.reason == "backing_off":
            pause = min(pause, float(str(decision.evidence["seconds"])) + 0.001)
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._wake.wait()
        self._wake.clear()
        self._take_messages()
        work, step = self._work, self._step
        if work is None or step is None:
            return
        if not work.done() and step.action in ABORTABLE and self._must_abort():
            self._emit("start_aborted", f"{self.deployment.name}: {step.action} called off")
            await _cancelled(work)
        if work.done():
            self._work, self._step = None, None
            self.deployment.busy = False
            self._collect(work, step.action)

    def _must_abort(self) -> bool:
        return not self.deployment.should_run or bool(self._retire) or self._cut

    def _collect(self, work: asyncio.Task[None], step: Step) -> None:
        """What a step did not handle itself: Podman in trouble, or a bug. Shown, logged, and backed off from."""
        d = self.deployment
        error = None if work.cancelled() else work.exception()
        if error is None:
            d.stuck, d.stuck_until = 0, None
            return
        if not isinstance(error, OutriderError):
            log.error("step_crashed", deployment=d.name, step=step, exc_info=error)
        if step in (Step.STOP, Step.CLEAN):
            d.stuck += 1
            pause = backoff.delay(d.stuck, self._context.timing, 0.0)
            d.stuck_until = self._context.clock.now() + pause
            self._steps.explain(error, {"step": step.value, "again_in_s": round(pause, 3)})
        else:
            self._steps.record_failure(error, ran_for=0.0)

    def publish(self) -> None:
        """Give the gateway and followers the present state."""
        route = self.deployment.route(self._context.clock.now(), self._context.timing.held_backoff)
        self._context.routing.publish(self.deployment.name, route)
        self._context.demand.noticed()

    # views

    def view(self) -> DeploymentView:
        view = self.deployment.view(self._context.gateway, self._context.clock.now())
        return replace(
            view,
            paused_by=self._context.automation.paused(view.deployment),
            demand=self._context.demand.view(self.deployment),
            failures_left=self._steps.ladder.failures_left(),
        )

    def adopt(self, engine: Engine) -> None:
        """Take over an engine that a former daemon started; before `run`."""
        d = self.deployment
        if d.engine(engine.generation) is not None:
            return
        d.engines.append(engine)
        d.called = True  # a request called it, of which only the former daemon knew
        # without drafts and with a policy: a former daemon's governor took speculation back
        d.speculate = engine.plan.method is not Method.NONE or d.entry.speculation.policy == "off"
        if engine.state is State.READY and (d.serving is None or engine.generation > d.serving):
            d.serving = engine.generation
            d.wanted, d.proven = engine.plan, engine.plan.digest
        elif d.wanted is None:
            d.wanted = engine.plan


async def _cancelled(task: asyncio.Task[None]) -> None:
    """Cancel and wait. `asyncio.wait` does not raise the task's own cancellation, so one that arrives here is
    the caller's, and goes on."""
    task.cancel()
    await asyncio.wait([task])
