"""From one engine of a deployment to another: how, `switching.decide` says; this carries it out.

It may be cut off at any await, as any step; the next decision goes on from the engines that there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from orchestrator import backoff, switching
from orchestrator.admission import devices_of
from orchestrator.context import Cause, Context
from orchestrator.decision import Decision
from orchestrator.deployment import Deployment
from orchestrator.engine import Engine
from orchestrator.errors import OutriderError, SwitchTooCostly
from orchestrator.lifecycle import COMING, SERVING
from orchestrator.plan import Method, Plan
from orchestrator.switching import Switch
from orchestrator.views import State


class Hands(Protocol):
    """What a switch is made of (`orchestrator.steps`)."""

    async def new_engine(self, plan: Plan) -> Engine: ...
    async def bring_up(self, engine: Engine) -> bool: ...
    async def stop(self, engine: Engine, reason: str) -> None: ...
    def record_failure(self, error: BaseException, *, ran_for: float) -> None: ...
    def emit(
        self, code: str, text: str, *, kind: str = "lifecycle", evidence: Mapping[str, object] | None = None
    ) -> None: ...


class SwitchStep:
    """The switches of one deployment."""

    def __init__(self, deployment: Deployment, context: Context, publish: Callable[[], None], hands: Hands) -> None:
        """`publish` shows the present state to the gateway."""
        self._d = deployment
        self._c = context
        self._publish = publish
        self._hands = hands

    async def carry_out(self, plan: Plan, cause: Cause | None) -> None:
        """From the engine that serves to one of `plan`; `cause` is why that is wanted. When it does not work
        out, the old plan is wanted again."""
        d, old = self._d, self._d.serving_engine
        if old is None:
            raise RuntimeError(f"{d.name} has nothing to switch from")
        cause = cause or Cause("plan_changed", "outrider")
        decision = await self._how(plan, cause)
        numbers = {**cause.evidence, **decision.evidence, "from": old.generation, "cause": cause.reason, "by": cause.by}
        if decision.action is Switch.REFUSE:
            self._refuse(old, plan, decision.reason, numbers)
            return
        self._hands.emit(
            "switch_started",
            f"{d.name}: {old.plan.method} -> {plan.method} ({decision.action}, {cause.reason})",
            kind="switch",
            evidence={"how": decision.action.value, "why": decision.reason, **numbers},
        )
        started = self._c.clock.now()
        with self._c.demand.kept_for(d, plan):
            if decision.action is Switch.BREAK_BEFORE_MAKE:
                # arrivals are held from here on: the route has no admitting engine and one is coming
                old.admit = False
                self._publish()
                await self._hands.stop(old, "switch")
            new = await self._arriving(plan)
            up = new is not None and await self._hands.bring_up(new)
        if new is None or not up:
            self._take_back(old)
            return
        if decision.action is Switch.MAKE_BEFORE_BREAK:
            old.admit = False
            self._publish()
        d.switches["done"] += 1
        self._hands.emit(
            "switch_done",
            f"{d.name}: {new.plan.method} serves since {self._c.clock.now() - started:.1f} s after the decision",
            kind="switch",
            evidence={
                "generation": new.generation,
                "method": new.plan.method.value,
                "seconds": round(self._c.clock.now() - started, 3),
                "how": decision.action.value,
            },
        )
        if old in d.live() and old.state is not State.WEDGED:  # what nothing can end is looked at by the lifecycle
            await self._hands.stop(old, "superseded")

    async def _arriving(self, plan: Plan) -> Engine | None:
        """The engine to switch to: one that an earlier, cut-off switch began, else a new one; None when none can be."""
        for engine in self._d.live():
            if engine.state in COMING and engine.plan.digest == plan.digest:
                return engine
        try:
            return await self._hands.new_engine(plan)
        except OutriderError as error:
            self._hands.record_failure(error, ran_for=0.0)
            return None

    async def _how(self, plan: Plan, cause: Cause) -> Decision[Switch]:
        devices = devices_of(plan, self._c.admission.facts_for(self._d.name))
        free = self._c.admission.free(devices)
        facts = switching.SwitchFacts(
            needed=plan.expected_memory.total,
            free=None if free is None else max(0, free - self._c.demand.kept(self._d, devices)),
            unserved_s=await self._c.store.start_seconds(plan.digest, self._d.name),
            max_switch_s=self._d.entry.speculation.max_switch_s if cause.automatic else None,
        )
        return switching.decide(facts)

    def _refuse(self, old: Engine, plan: Plan, code: str, numbers: Mapping[str, object]) -> None:
        d = self._d
        self._stay_with(old.plan, "refused")
        error = SwitchTooCostly(
            f"{d.name} stays with {old.plan.method}: a switch to {plan.method} would leave it unserved for too long",
            evidence=dict(numbers),
        )
        self._hands.emit(code, error.detail, kind="switch", evidence=error.evidence)

    def _take_back(self, old: Engine) -> None:
        """The new engine did not come up: the old plan is wanted again, and serves on if it still runs."""
        d = self._d
        self._stay_with(old.plan, "taken_back")
        old.admit = True
        if old in d.live() and old.state in SERVING:
            d.failures = backoff.Failures()
        else:
            d.failures = replace(d.failures, retry_at=None, parked=False)
        self._hands.emit(
            "switch_taken_back",
            f"{d.name}: the new engine did not come up; back to {old.plan.method}",
            kind="switch",
            evidence={"from": old.generation, "code": None if d.reason is None else d.reason.code},
        )

    def _stay_with(self, plan: Plan, outcome: str) -> None:
        """The switch did not happen: the old plan is wanted again, and the governor rests for the dwell
        time, ten periods at least."""
        self._d.wanted = plan
        self._d.speculate = plan.method is not Method.NONE
        self._d.switches[outcome] += 1
        timing = self._c.timing
        rest = max(self._d.entry.speculation.dwell_s * timing.scale, 10 * timing.governor_period)
        self._d.governor = replace(self._d.governor, refused_until=self._c.clock.now() + rest)
