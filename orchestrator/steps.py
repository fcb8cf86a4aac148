"""Carrying out one step of a deployment. What the next step is, `lifecycle.decide` says; the switch from one
engine to another is in `switch_step`.

A step may be cancelled at any await. It then leaves the engine in the state it reached, and
the next decision finds it there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

import structlog

from containers.errors import DeviceUnavailable, ImageMissing
from containers.pulling import PullProgress
from containers.spec import ImageInfo
from orchestrator import backoff, device_policy, lost_answers
from orchestrator.context import Cause, Context
from orchestrator.crash_points import Place, reached
from orchestrator.decision import Decision
from orchestrator.demand.unloading import emptied
from orchestrator.deployment import Deployment, Transfer
from orchestrator.device_move import Elsewhere
from orchestrator.engine import SOCKET_NAME, Engine, new_id, new_key, socket_folder
from orchestrator.errors import (
    MEMORY_GUARD,
    DatabaseFailed,
    DeviceMissing,
    DoesNotFit,
    EngineFailed,
    OutriderError,
)
from orchestrator.lifecycle import COMING, Step
from orchestrator.plan import Plan
from orchestrator.restarting.climber import Climber
from orchestrator.switch_step import SwitchStep
from orchestrator.telling.amounts import count
from orchestrator.telling.words import ENDINGS
from orchestrator.views import Desired, State, Why

MB = 1_000_000
OURSELVES = "outrider"
"""Who plans when nobody asked."""
WEDGED = "wedged"
"""The code with which a take-down says that the process is still there."""
log = structlog.get_logger("steps")


class Steps:
    """The steps of one deployment."""

    def __init__(
        self, deployment: Deployment, context: Context, publish: Callable[[], None], exited: Callable[[], None]
    ) -> None:
        """`publish` shows the present state to the gateway; `exited` is called when an engine's process ends."""
        self._d = deployment
        self._c = context
        self._publish = publish
        self._exited = exited
        self._cause: Cause | None = None
        self._unplanned = False
        """The last attempt to plan failed."""
        self.ladder = Climber(deployment, context)
        self.elsewhere = Elsewhere(deployment, context)
        self._switching = SwitchStep(deployment, context, publish, self)

    async def perform(self, decision: Decision[Step], cause: Cause | None) -> None:
        """One step. Failures are recorded on the deployment; only bugs are raised."""
        try:
            match decision.action:
                case Step.PLAN:
                    await self._plan(cause or Cause(decision.reason, OURSELVES))
                case Step.START:
                    await self._start(self._wanted())
                case Step.CONTINUE:
                    await self._continue(self._engine(decision))
                case Step.SWITCH:
                    await self._switching.carry_out(self._wanted(), self._cause)
                case Step.STOP:
                    # what is desired is left as it was when the daemon ends with its engines
                    ends = self._d.halted and self._d.desired is not Desired.STOPPED
                    asked = not ends or decision.reason != "desired_stopped"
                    await self.stop(self._engine(decision), decision.reason if asked else "daemon_ends")
                case Step.CLEAN:
                    await self._clean(self._engine(decision))
                case Step.SETTLED | Step.WAIT:
                    raise RuntimeError(f"{decision.action} is nothing to perform")
            await self._noted(self.ladder.save())
        finally:
            self._d.phase = None

    def _wanted(self) -> Plan:
        if self._d.wanted is None:
            raise RuntimeError(f"{self._d.name} has no plan to start from")
        return self._d.wanted

    def _engine(self, decision: Decision[Step]) -> Engine:
        engine = self._d.engine(int(str(decision.evidence["generation"])))
        if engine is None:
            raise RuntimeError(f"{self._d.name} has no engine for {decision}")
        return engine

    def _seen(self, state: State, detail: str) -> None:
        since = self._d.phase[2] if self._d.phase is not None else self._c.clock.now()
        self._d.phase = (state, detail, since)
        self._publish()

    def emit(
        self, code: str, text: str, *, kind: str = "lifecycle", evidence: Mapping[str, object] | None = None
    ) -> None:
        """Put what happened to this deployment into the journal."""
        self._c.journal.emit(kind, code, text, deployment=self._d.name, evidence=evidence)

    # plan

    async def _plan(self, cause: Cause) -> None:
        d, lost = self._d, self.elsewhere.lost()
        self._seen(State.CREATING, "planning")
        try:
            # the governor takes speculation off what runs; anybody else asks for what is best now
            running = d.wanted if cause.automatic else None
            await self._c.needs.check(d.entry, doubt=d.waits_for_device)
            fetch = self._fetch if self._c.images.pulls_at_start else None
            plan = await self._c.planning.plan(
                d.entry, speculate=d.speculate, running=running, fetch=fetch, choose=self.ladder.choose
            )
        except OutriderError as problem:
            error = self._c.demand.explained(d, problem)
            if lost is not None:
                self.elsewhere.stays(error)  # that it fits nowhere else is no failure of its own: it waits as before
                return
            self._unplanned = True
            if d.serving_engine is None:
                if isinstance(error, DeviceMissing):
                    self._c.needs.waits(d.name, error)
                self.record_failure(error, ran_for=0.0)
            else:
                self._c.needs.no_longer(d.name)  # it has what it runs on
                d.reason = Why(error.code, error.detail, error.hint)
                self.emit("plan_failed", f"{d.name}: {error.detail}", evidence={"by": cause.by, **error.evidence})
            return
        d.fresh = plan.digest
        self.ladder.planned(plan)
        if d.serving_engine is None and (self._unplanned or cause.by != OURSELVES):
            d.failures, d.reason = backoff.Failures(), None  # what was in the way of a plan no longer is
        self._unplanned = False
        before = d.wanted
        if before is not None and before.digest == plan.digest:
            self.emit(
                "plan_unchanged", f"{d.name}: the plan launches the same ({cause.reason})", evidence={"by": cause.by}
            )
            return
        if lost is not None:
            self.elsewhere.goes(lost, plan)
        d.wanted = plan
        d.last_start_s = await self._c.store.start_seconds(plan.digest, d.name)
        self._cause = cause
        reached(Place.PLANNED)
        self.emit(
            "planned",
            f"{d.name}: {plan.runtime} with {plan.method} ({count(plan.draft_tokens, 'token')}),"
            f" context {plan.context} x {plan.parallel}",
            evidence={
                "plan": plan.digest,
                "before": None if before is None else before.digest,
                "cause": cause.reason,
                "by": cause.by,
                "method": plan.method.value,
                "expected_bytes": plan.expected_memory.total,
                **cause.evidence,
            },
        )

    async def _fetch(self, image: str) -> ImageInfo | None:
        """Bring an image that the plan needs, showing its bytes."""
        d, started = self._d, self._c.clock.now()
        d.phase = (State.PULLING, f"pulling {image}", started)
        d.transfer = Transfer(0, None, started)  # from now on nobody waits for its turn after this
        self._publish()

        def watch(progress: PullProgress) -> None:
            total = progress.total
            unpacking = total is not None and progress.done >= total
            size = f"{progress.done / MB:.0f} of {total / MB:.0f} MB" if total else f"{progress.done / MB:.0f} MB"
            d.phase = (State.PULLING, f"{'unpacking' if unpacking else 'pulling'} {image}, {size}", started)
            d.transfer = Transfer(progress.done, total, started)

        try:
            return await self._c.images.fetch(image, by=d.name, watch=watch)
        finally:
            d.transfer = None
            d.phase = (State.CREATING, "planning", started)

    # up

    async def new_engine(self, plan: Plan) -> Engine:
        """A record of the next generation; nothing runs yet."""
        newest = max((e.generation for e in self._d.engines), default=0)
        generation = await self._c.store.next_generation(self._d.name, newest + 1)
        reached(Place.NUMBERED)
        engine_id = new_id()
        engine = Engine(
            id=engine_id,
            deployment=self._d.name,
            generation=generation,
            plan=plan,
            key=new_key(),
            socket=str(socket_folder(self._c.paths, engine_id) / SOCKET_NAME) if plan.socket else None,
            port=None,
            since=self._c.clock.wall(),
        )
        self._d.engines.append(engine)
        return engine

    async def _start(self, plan: Plan) -> None:
        if self._d.guarded is not None and not self._c.guard.room_for(plan):
            self._no_room(self._d.guarded)
            return
        if plan.devices and not await self._devices_of(plan):
            return
        try:
            async with self._c.demand.room_for(self._d, plan, self._seen):
                await self.bring_up(await self.new_engine(plan))
        except DoesNotFit as error:
            if not await self._moves(plan):
                self.record_failure(error, ran_for=0.0)

    async def _moves(self, plan: Plan) -> bool:
        """What found no room is planned anew, for what is left; what has served gives up nothing but its place."""
        d = self._d
        if plan.digest != d.proven:
            d.wanted = self.elsewhere.home(plan)
            return False
        other = await self.elsewhere.roomier(plan, self.ladder.choose)
        if other is None:
            return False
        self.ladder.planned(other)
        self.elsewhere.goes(plan, other)
        d.wanted, d.fresh = other, other.digest
        d.last_start_s = await self._c.store.start_seconds(other.digest, d.name)
        return True

    async def _devices_of(self, plan: Plan) -> bool:
        """Whether the plan can be started as it is. A device that is gone is waited for; one that is there under
        another name needs another plan."""
        try:
            if await self._c.needs.check(self._d.entry, plan, doubt=self._d.waits_for_device):
                return True
        except OutriderError as error:
            self.record_failure(error, ran_for=0.0)
            return False
        self._d.wanted = None
        return False

    def _no_room(self, stopped: EngineFailed) -> None:
        """Still no memory for what was stopped for want of it. That is no further failure: looking again is cheap."""
        d = self._d
        d.reason = Why(stopped.code, stopped.detail, stopped.hint)
        pause = self._c.timing.reconcile_period
        d.failures = replace(d.failures, retry_at=self._c.clock.now() + pause, delay=pause)

    async def _continue(self, engine: Engine) -> None:
        """Finish an engine that is on its way, or let a proven one serve."""
        if engine.state in (State.READY, State.DRAINING):
            if engine.state is State.DRAINING:
                engine.move(State.READY)
            self._promote(engine)
            return
        await self.bring_up(engine)

    async def bring_up(self, engine: Engine) -> bool:
        """Up to ready and serving; whether it got there. A failure is recorded and the engine marked for cleaning."""
        d, started = self._d, self._c.clock.now()
        d.phase = (engine.state, "starting", started)
        fresh = engine.container_id is None
        self.emit(
            "starting" if fresh else "proving_again",
            f"{engine.name}: {engine.plan.runtime} with {engine.plan.method}",
            evidence={"generation": engine.generation, "plan": engine.plan.digest},
        )
        engine.on_exit = self._exited
        try:
            d.usual_start_s = self._c.planning.load_prior(engine.plan)
            limit = d.entry.load_s or self._c.planning.load_limit(engine.plan, d.last_start_s)
            d.granted_s = limit
            proven = await self._c.runner.bring_up(engine, limit=limit, seen=self._seen)
        except asyncio.CancelledError:
            if engine.state in (State.PULLING, State.CREATING):
                engine.move(State.FAILED)  # cut off in the middle of a create: removed, not continued
            raise
        except Exception as error:  # any: an engine that stays half made would be continued for ever
            if not isinstance(error, OutriderError):
                log.exception("start_crashed", engine=engine.name)
            d.last_log = await self._c.runner.tail(engine)
            engine.move(State.FAILED)
            if isinstance(error, ImageMissing):
                # it went after the plan was made: planned anew, which brings it
                d.wanted, error.retryable = None, self._c.images.pulls_at_start
            elif isinstance(error, DoesNotFit) and engine.plan.digest != d.proven:
                d.wanted = None  # another was started meanwhile: planned anew, for what is left
            elif isinstance(error, EngineFailed):
                error = device_policy.blamed(error, engine.reported, self._c.clock.now())
            self.record_failure(engine.verdict or self._as_missing(error), ran_for=0.0, engine=engine)
            return False
        seconds = self._c.clock.now() - started
        now = self._c.clock.wall()
        reached(Place.PROVED)
        await self._noted(self._c.store.mark_proven(engine.id, now))
        reached(Place.PROOF_NOTED)
        await self._noted(self._c.needs.proven(d.name, engine.plan, now))
        if fresh:
            await self._noted(self._c.store.record_start(engine.plan.digest, d.name, seconds, now))
            d.last_start_s = engine.load_s = seconds
        if engine.state is not State.READY:
            return False  # it ended while that was noted, and the next decision finds it so
        d.reason, d.guarded, d.proven = None, None, engine.plan.digest
        self.ladder.ready(engine)
        self._promote(engine)
        reached(Place.SERVING)
        lost_answers.tell(d, d.name, self._c.gateway, self._c.journal)
        self.emit(
            "ready",
            f"{engine.name} is ready after {seconds:.1f} s",
            evidence={
                "generation": engine.generation,
                "seconds": round(seconds, 3),
                "container": engine.container_id,
                "method": engine.plan.method.value,
                "drafted": proven.drafted,
                "accepted": proven.accepted,
                "engine_says_speculating": proven.says_speculating,
            },
        )
        return True

    def _as_missing(self, error: Exception) -> Exception:
        """A node or CDI name that Podman does not find may come yet."""
        if not isinstance(error, DeviceUnavailable):
            return error
        missing = DeviceMissing(error.detail, hint=error.hint, evidence=error.evidence)
        self._c.needs.waits(self._d.name, missing)
        return missing

    def _promote(self, engine: Engine) -> None:
        self._d.serving = engine.generation
        engine.admit = True
        self._publish()

    def record_failure(self, error: BaseException, *, ran_for: float, engine: Engine | None = None) -> None:
        """Remember what went wrong, and decide what follows (`orchestrator.restarting`): with the engine whose failure
        it is, it counts on the rung."""
        if isinstance(error, EngineFailed) and error.code == MEMORY_GUARD:
            self._d.guarded = error
        self.explain(error, self.ladder.record(error, ran_for=ran_for, engine=engine))
        self.ladder.tell()

    def explain(self, error: BaseException, evidence: Mapping[str, object]) -> None:
        """Show what went wrong, and put it in the journal."""
        known = error if isinstance(error, OutriderError) else None
        self._d.reason = (
            Why("internal", f"{type(error).__name__}: {error}", "this is a defect; the daemon's log has the trace")
            if known is None
            else Why(known.code, known.detail, known.hint)
        )
        self.emit(
            DeviceMissing.code if isinstance(error, DeviceMissing) else "failed",
            f"{self._d.name}: {self._d.reason.text}",
            evidence={"code": self._d.reason.code, **evidence, **({} if known is None else known.evidence)},
        )

    # down

    async def stop(self, engine: Engine, reason: str) -> None:
        """Drain, then the stop ladder; ends with the engine gone."""
        d = self._d
        leaving = d.leaving if d.desired is Desired.ON_DEMAND and reason == "desired_stopped" else None
        if leaving is not None:
            reason = leaving.code
        d.phase = (engine.state, f"stopping ({ENDINGS.get(reason, reason)})", self._c.clock.now())
        if leaving is not None and not await emptied(d, engine, leaving, self._c, self._publish):
            return
        if engine.state is State.READY:
            engine.admit = False
            engine.move(State.DRAINING)
            self._publish()
        unproven = engine.adopted and engine.state in COMING
        if unproven:
            engine.admit = False
        if (engine.state is State.DRAINING or unproven) and leaving is None:
            reached(Place.DRAINING)
            drained = await self._c.runner.drain(engine, self._c.routing.revision)
            self.emit(
                "drained" if drained.done else "drain_cut_short",
                f"{engine.name}: {drained.reason}",
                evidence={"generation": engine.generation, "in_flight": drained.in_flight},
            )
        reached(Place.DRAINED)
        if engine.state is not State.STOPPING:
            engine.move(State.STOPPING)
        self._publish()
        await self._gone(engine, reason)

    async def _clean(self, engine: Engine) -> None:
        """An engine failed: say why, if nobody did yet, and remove what is left of it."""
        d = self._d
        if engine.state is State.FAILED and engine.ready_at is not None:
            d.last_log = await self._c.runner.tail(engine)
            error = engine.verdict
            if error is None:
                ended = await self._c.runner.why_it_ended(engine)
                error = device_policy.blamed(ended, engine.reported, self._c.clock.now())
            self.record_failure(error, ran_for=self._c.clock.now() - engine.ready_at, engine=engine)
            engine.ready_at = None  # counted: a clean-up that has to be tried again is no second failure
            await self._noted(self.ladder.save())
            d.restarts += 1
        await self._gone(engine, WEDGED if engine.state is State.WEDGED else "failed")

    async def _gone(self, engine: Engine, reason: str) -> None:
        if not _log_kept(self._d, engine):
            self._d.last_log = await self._c.runner.tail(engine)
        try:
            await asyncio.shield(self._take_down(engine))
        except OutriderError as error:
            if error.code != WEDGED and engine.state is not State.WEDGED:
                raise
            self._wedge(engine, error)
            return
        await self._noted(self._c.store.forget_engine(engine.id))
        reached(Place.FORGOTTEN)
        await self._c.gateway.left(engine.id)
        lost_answers.tell(self._d, engine.name, self._c.gateway, self._c.journal)
        if engine.state is State.WEDGED and self._d.reason is not None and self._d.reason.code == WEDGED:
            self._d.reason = None
        engine.move(State.STOPPED)
        if self._d.serving == engine.generation:
            self._d.serving = None
        self._d.engines.remove(engine)
        self._d.leaving = None
        self.emit("stopped", f"{engine.name} is gone ({reason})", evidence={"generation": engine.generation})
        self._publish()

    def _take_down(self, engine: Engine) -> asyncio.Task[None]:
        """Once begun, a removal is finished: a half-removed container is nobody's. Whoever asks while it goes on
        waits for the same one, and one that got there is not begun again."""
        before = engine.leaving
        if before is None or (before.done() and (before.cancelled() or before.exception() is not None)):
            engine.leaving = asyncio.create_task(self._c.runner.take_down(engine), name=f"take-down-{engine.name}")
            engine.leaving.add_done_callback(lambda task: task.cancelled() or task.exception())
            return engine.leaving
        return before

    def _wedge(self, engine: Engine, error: OutriderError) -> None:
        """It is not gone, and nobody can end it: others may start beside it, and it is looked at again, more and
        more rarely."""
        engine.tries += 1
        pause = backoff.delay(engine.tries, self._c.timing, 0.0)
        engine.again_at = self._c.clock.now() + pause
        self._c.admission.stays(engine.id)
        if self._d.serving == engine.generation:
            self._d.serving = None
        if engine.state is not State.WEDGED:
            engine.move(State.WEDGED)
            self.explain(error, {"generation": engine.generation, "again_in_s": round(pause, 3)})
        self._publish()

    async def _noted(self, note: Awaitable[None]) -> None:
        """A note for later that must not keep anything from going on: a full disk costs history, not service."""
        try:
            await note
        except DatabaseFailed as error:
            self.emit("not_noted", f"{self._d.name}: {error.detail}", kind="daemon", evidence={"hint": error.hint})


def _log_kept(deployment: Deployment, engine: Engine) -> bool:
    """Whether the log of a failed engine was kept already."""
    return engine.state is State.FAILED and bool(deployment.last_log)
