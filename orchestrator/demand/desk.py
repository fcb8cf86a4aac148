"""Where requests for models that are not loaded arrive: who is called, and who is unloaded when nobody asks for it.

It watches what the gateway reports and what is loaded, asks the pure modules beside it, and tells the deployments'
actors. It changes no deployment itself and never writes `desired`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING

from orchestrator.admission import Admission
from orchestrator.automation import Automation
from orchestrator.clock import Clock
from orchestrator.config import DemandSettings
from orchestrator.demand import idle, keeping, room, words
from orchestrator.demand.groups import Group
from orchestrator.demand.idle import Idling
from orchestrator.demand.keeping import Resident
from orchestrator.demand.room_queue import WAITING, RoomQueue, Seen
from orchestrator.demand.unloading import Leaving
from orchestrator.errors import DoesNotFit, OutriderError
from orchestrator.events import Journal
from orchestrator.gateway_link import GatewayLink
from orchestrator.plan import Plan
from orchestrator.timing import Timing
from orchestrator.views import DemandView, Desired, RoomView, State, Why

if TYPE_CHECKING:
    from orchestrator.actor import Actor
    from orchestrator.deployment import Deployment


class Desk:
    """One host's. All of it runs on the event loop."""

    def __init__(
        self,
        settings: DemandSettings,
        groups: Sequence[Group],
        *,
        admission: Admission,
        gateway: GatewayLink,
        journal: Journal,
        automation: Automation,
        clock: Clock,
        timing: Timing,
        awake_since: Callable[[], float] = lambda: float("-inf"),
    ) -> None:
        self._settings, self._groups = settings, tuple(groups)
        self._gateway, self._journal = gateway, journal
        self._automation, self._clock, self._timing = automation, clock, timing
        self._awake_since = awake_since
        """Monotonic: what was not used before that may have been, while nobody looked."""
        self.actors: Callable[[], Sequence[Actor]] = lambda: ()
        """Set once there are any."""
        self._arrivals: dict[str, int] = {}
        self._used: dict[str, float] = {}
        """When each model was last asked for, by what the gateway said; monotonic."""
        self._withheld: set[str] = set()
        """Models of which was said already what would have been done."""
        self._room = RoomQueue(
            actors=self._everybody,
            resident=self.resident,
            rules=lambda: self.rules,
            admission=admission,
            journal=journal,
            clock=clock,
            timing=timing,
        )
        admission.yielding = self._yielding

    def configure(self, settings: DemandSettings, groups: Sequence[Group]) -> None:
        """Take up other settings."""
        self._settings, self._groups = settings, tuple(groups)

    def _everybody(self) -> Sequence[Actor]:
        return self.actors()

    # what is known of a model

    def ttl(self, d: Deployment) -> float | None:
        """Seconds without a request after which it is unloaded; None for ever."""
        found = self._settings.ttl_s if d.entry.ttl_s is None else d.entry.ttl_s
        return None if found is None else found * self._timing.scale

    @property
    def residence(self) -> float:
        """Seconds that a model stays loaded at least before another may have its room."""
        return self._settings.residence_s * self._timing.scale

    @property
    def rules(self) -> room.Rules:
        return room.Rules(self._groups, self.residence, self._settings.turn_s * self._timing.scale)

    def on_by_default(self, d: Deployment) -> bool:
        """Whether it is to be there on demand although nobody has said anything about it yet."""
        chosen = d.entry.on_demand
        return d.desired_by is None and (self._settings.by_default if chosen is None else chosen)

    def resident(self, d: Deployment) -> Resident | None:
        """It and what it holds; None when it has no engine."""
        live = d.live()
        if not live:
            return None
        now, engine = self._clock.now(), d.serving_engine
        sizes: dict[str, int] = {}
        for claim in self._room.held(d):
            for device in claim.devices:
                sizes[device] = sizes.get(device, 0) + claim.size
        ready_at = None if engine is None else engine.ready_at
        since = max((t for t in (self._used.get(d.name), ready_at) if t is not None), default=None)
        if since is not None:
            since = max(since, self._awake_since())
        return Resident(
            d.name,
            sizes=sizes,
            on_demand=d.desired is not Desired.RUNNING,
            pinned=d.entry.pinned,
            paused_by=self._automation.paused(d.name),
            wedged=all(e.state is State.WEDGED for e in live),
            loading=engine is None or (d.busy and engine.state is State.READY),
            leaving=d.leaving is not None or (engine is not None and engine.state is not State.READY),
            in_flight=self._gateway.last_in_flight(d.name),
            waiting=self._gateway.waiting(d.name),
            resident_s=None if ready_at is None else now - ready_at,
            idle_s=None if since is None else now - since,
            load_s=d.last_start_s,
            priority=d.entry.priority,
        )

    def _yielding(self, model: str) -> Collection[str]:
        """Models whose memory a plan of `model` may count on: they make way when it comes."""
        return {
            d.name
            for a in self.actors()
            if (d := a.deployment).name != model
            and d.desired is Desired.ON_DEMAND
            and not d.entry.pinned
            and self._automation.paused(d.name) is None
        }

    def uncallable(self, d: Deployment) -> Why | None:
        """Why no request brings it up now; None when one does."""
        by = self._automation.paused(d.name)
        if d.desired is not Desired.ON_DEMAND or by is None:
            return None
        return Why("paused", f"{d.name} is paused by {by}: no request starts it", f"`outrider resume {d.name}`")

    # room

    def noticed(self) -> None:
        """Something changed: whoever waits for room looks again."""
        self._room.noticed()

    def room_for(self, d: Deployment, plan: Plan, seen: Seen) -> AbstractAsyncContextManager[None]:
        """As `RoomQueue.room_for`."""
        return self._room.room_for(d, plan, seen)

    def kept_for(self, d: Deployment, plan: Plan) -> AbstractContextManager[None]:
        """As `RoomQueue.kept_for`."""
        return self._room.kept_for(d, plan)

    def kept(self, d: Deployment, devices: Sequence[str]) -> int:
        """As `RoomQueue.kept`."""
        return self._room.kept(d, devices)

    def preview(self, d: Deployment, plan: Plan) -> RoomView:
        """What would have to go now so that this plan could be started. Changes nothing."""
        return self._room.preview(d, plan)

    def explained(self, d: Deployment, error: OutriderError) -> OutriderError:
        """A plan that found no room: with those that do not make way for it."""
        if not isinstance(error, DoesNotFit):
            return error
        return words.beside(error, words.lasting(self._room.residents(d.name)))

    # requests

    def heard(self) -> None:
        """The gateway has reported: note who is used, and call who is waited for."""
        now = self._clock.now()
        for actor in self.actors():
            d = actor.deployment
            arrivals, waiting = self._gateway.arrivals(d.name), self._gateway.waiting(d.name)
            asked = arrivals > self._arrivals.get(d.name, 0)
            self._arrivals[d.name] = arrivals
            if asked or waiting or self._gateway.in_flight(d.name):
                self._used[d.name] = now
            if d.desired is not Desired.ON_DEMAND or d.called:
                continue
            why = self.uncallable(d)
            if why is None:
                self._withheld.discard(d.name)
                if waiting:
                    self._call(actor, waiting)
            elif asked and d.name not in self._withheld:
                self._withheld.add(d.name)
                self._say(d, "call_withheld", f"a request for {d.name} would have started it: {why.text}", {})
        self.noticed()

    def _call(self, actor: Actor, waiting: int) -> None:
        d = actor.deployment

        def tell() -> None:
            many = "a request waits" if waiting == 1 else f"{waiting} requests wait"
            engine = d.serving_engine
            stays = engine is not None and engine.state is State.READY and not d.busy
            done = "it stays loaded" if stays else "it is started"
            self._say(d, "called", f"{many} for {d.name}: {done}", {"waiting": waiting})

        actor.call(tell)

    def _say(self, d: Deployment, code: str, text: str, evidence: Mapping[str, object]) -> None:
        self._journal.emit("demand", code, text, deployment=d.name, evidence=evidence)

    async def look(self) -> None:
        """One round: unload what has been idle for long enough, and forget calls that nobody waits for any more."""
        for actor in self.actors():
            d = actor.deployment
            if d.desired is not Desired.ON_DEMAND:
                continue
            resident = self.resident(d)
            if resident is not None:
                await self._look_at(actor, resident)
            elif d.called and self._nobody_waits(d):
                self._say(d, "call_forgotten", f"nobody waits for {d.name} any more", {"reason": _code(d.reason)})
                actor.give_up()

    async def _look_at(self, actor: Actor, resident: Resident) -> None:
        d, ttl = actor.deployment, self.ttl(actor.deployment)
        decision = idle.decide(resident, ttl=ttl, heard=self._gateway.heard)
        if decision.reason == "paused" and d.name not in self._withheld:
            self._withheld.add(d.name)
            text = f"{d.name} would be unloaded after {resident.idle_s:.0f} s without a request, but it is paused"
            self._say(d, "unload_withheld", text, decision.evidence)
        if decision.action is Idling.UNLOAD:
            self._withheld.discard(d.name)
            text = f"{d.name} has had no request for {resident.idle_s:.0f} s and is unloaded"
            self._say(d, "idle_unload", text, decision.evidence)
            await actor.let_go(Leaving("idle_unload", text, self._timing.unload_drain, evidence=decision.evidence))

    def _nobody_waits(self, d: Deployment) -> bool:
        if d.desired is not Desired.ON_DEMAND or self._gateway.waiting(d.name):
            return False
        now, retry_at = self._clock.now(), d.failures.retry_at
        if now - self._used.get(d.name, 0.0) < self._timing.call_kept:
            return False
        waits_for_room = d.reason is not None and d.reason.code == WAITING
        return waits_for_room or (not d.busy and (d.failures.parked or (retry_at is not None and retry_at > now)))

    # what is shown

    def view(self, d: Deployment) -> DemandView | None:
        """What `ps` says of a model that is there on demand, or that is loaded; None for the others."""
        resident = self.resident(d)
        if resident is None and d.desired is not Desired.ON_DEMAND:
            return None
        why = None if resident is None else keeping.kept(resident, self.residence)
        used = self._used.get(d.name)
        left = None
        ttl = self.ttl(d) if d.desired is Desired.ON_DEMAND and not d.entry.pinned else None
        if resident is not None and ttl is not None and resident.idle_s is not None:
            left = round(max(0.0, ttl - resident.idle_s), 1)
        return DemandView(
            last_used_s=None if used is None else round(self._clock.now() - used, 1),
            evictable=resident is not None and why is None,
            kept=why,
            ttl_s=ttl,
            unload_in_s=left,
            pinned=d.entry.pinned,
            groups=tuple(g.name for g in self._groups if d.name in g.members),
        )


def _code(why: Why | None) -> str | None:
    return None if why is None else why.code
