"""A deployment whose GPU is lost, or taken, and the others of its machine: the planner is asked whether one of them
takes it.

Of a lost one it is asked at once, and again now and then while the answer is no, for memory may come free and GPUs may
come. Until then the deployment waits for its GPU. Once it serves on another it stays there: a GPU that comes back moves
nothing. Of one that has no room it is asked at each attempt, and only a plan that gives no less than the one that
served is taken.
"""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.context import Cause, Context
from orchestrator.deployment import Deployment
from orchestrator.device_policy import GPU_LOST, Lost
from orchestrator.errors import OutriderError
from orchestrator.plan import Plan, Planned
from orchestrator.views import State

BY = "outrider"
_GIVEN = ("variant", "runtime", "image", "method", "draft_tokens", "drafter", "context", "parallel")
"""What a plan gives to clients, wherever it runs."""


class Elsewhere:
    """The way from a lost GPU to another one, for one deployment. Changed by its actor alone."""

    def __init__(self, deployment: Deployment, context: Context) -> None:
        self._d = deployment
        self._c = context
        self._left: object = None
        """The GPUs that were left when the planner was asked last; None: it was not asked since the loss."""
        self._again_at = 0.0
        self._said: str | None = None
        self._home: tuple[str, Plan] | None = None
        """The digest of the plan that was gone to for want of room, and the one that was left."""

    async def roomier(self, plan: Plan, choose: Callable[[Planned], Planned]) -> Plan | None:
        """The same on another GPU, for a plan that has served and finds no room on its own; None: it waits there."""
        d, devices = self._d, self._c.devices
        mine = devices.taken(plan)
        if not mine:
            return None
        try:
            other = await self._c.planning.plan(d.entry, speculate=d.speculate, choose=choose)
        except OutriderError:
            return None
        place = devices.taken(other)
        if place == mine or len(place) != len(mine) or any(getattr(other, k) != getattr(plan, k) for k in _GIVEN):
            return None
        self._home = other.digest, plan
        return other

    def home(self, plan: Plan) -> Plan | None:
        """The plan that was left for this one; None when this one was not gone to for want of room."""
        return self._home[1] if self._home is not None and self._home[0] == plan.digest else None

    def lost(self) -> Plan | None:
        """The plan that cannot be started because its GPU is lost; None where that is not what it waits for."""
        d = self._d
        return d.wanted if d.should_run and d.serving_engine is None and d.held == GPU_LOST else None

    def cause(self) -> Cause | None:
        """Why a new plan is to be made now; None when there is nothing to ask."""
        d, plan = self._d, self.lost()
        if plan is None:
            self._left = self._said = None
            return None
        if d.failures.parked or self._c.automation.paused(d.name) is not None:
            return None  # a person's to decide
        if any(engine.state is not State.WEDGED for engine in d.live()):
            return None  # first what is left of it goes
        decision, now = self._c.devices.after_loss(plan), self._c.clock.now()
        left = decision.evidence["left"]
        if decision.action is Lost.WAIT or (left == self._left and now < self._again_at):
            return None
        self._left, self._again_at = left, now + self._c.timing.device_look
        return Cause(GPU_LOST, BY, evidence=decision.evidence)

    def goes(self, before: Plan, plan: Plan) -> None:
        """The planner found a place: said before the plan is."""
        devices = self._c.devices
        new = devices.taken(plan)
        names = [", ".join(devices.named(pci) for pci in sorted(some)) for some in (new, devices.taken(before) - new)]
        self._c.journal.emit(
            "lifecycle",
            "other_gpu",
            f"{self._d.name} goes to {names[0]} instead of {names[1]}",
            deployment=self._d.name,
            evidence={"gpu": sorted(new)},
        )

    def stays(self, error: OutriderError) -> None:
        """No other GPU takes it: said once for each reason."""
        text = f"{self._d.name} waits for its GPU, for no other takes it: {error.detail}"
        self._c.needs.no_longer(self._d.name)
        if text != self._said:
            self._said = text
            self._c.journal.emit(
                "lifecycle", "no_other_gpu", text, deployment=self._d.name, evidence={"code": error.code}
            )
