"""One deployment's state: what was asked for, the engines there are, and how it looks from outside.

Changed by its actor alone (`orchestrator.actor`); everybody may read.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from containers.spec import LogLine
from orchestrator.backoff import Failures
from orchestrator.demand.unloading import Leaving
from orchestrator.engine import Engine
from orchestrator.errors import DeviceMissing, EngineFailed
from orchestrator.gateway_link import GatewayLink
from orchestrator.governor import GovernorState
from orchestrator.lifecycle import COMING, GONE, Situation
from orchestrator.loading_marks import Suspicion
from orchestrator.models import ModelEntry
from orchestrator.plan import Plan
from orchestrator.routing import Route, RouteEngine
from orchestrator.views import DeploymentView, Desired, Progress, RungView, State, Why

TURN = "waiting_for_turn"
PAUSED = "paused"
"""A person told Outrider to keep its hands off it before it was there."""
REMAINS = "remains"
PASSING = frozenset({TURN, REMAINS})
"""What keeps it from being started for a while, and is over by itself."""
FOR_A_PERSON = 60.0
"""Seconds after which a client may ask again for what only a person brings back. Clients that wait by themselves
wait no longer than a minute."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """Bytes here of bytes in all (None: nobody knows), since when (monotonic seconds)."""

    done: int
    total: int | None
    since: float

    @property
    def fraction(self) -> float | None:
        """0..1; None while the size is not known."""
        return None if not self.total else min(1.0, self.done / self.total)

    def left(self, now: float) -> float | None:
        """Seconds that are left at the speed so far; None while there is none."""
        took = now - self.since
        if not self.total or self.done <= 0 or took <= 0:
            return None
        return max(0.0, (self.total - self.done) * took / self.done)


@dataclass(slots=True)
class Deployment:
    """Times are monotonic seconds."""

    entry: ModelEntry
    host: str
    desired: Desired = Desired.STOPPED
    desired_by: str | None = None
    engines: list[Engine] = field(default_factory=list)
    serving: int | None = None
    wanted: Plan | None = None
    """The plan to run. Only a person, a reload or the governor changes it; drift does not."""
    proven: str | None = None
    """The digest of the plan that served last, since this daemon runs."""
    fresh: str | None = None
    """The digest of what the planner would choose now; differs from what runs when that has drifted."""
    speculate: bool = True
    """Whether the governor lets it speculate."""
    halted: bool = False
    """The daemon is about to end with its engines; what is desired stays."""
    drained: bool = False
    """A person asked to admit nothing more; the engine stays."""
    called: bool = False
    """There on demand: a request asked for it since it was last unloaded."""
    leaving: Leaving | None = None
    """Why what serves is to be unloaded, though nobody said that it should stop."""
    uncallable: Why | None = None
    """There on demand: why no request brings it up now."""
    after: str | None = None
    """The daemon has just started, and this one is to be through first."""
    remains: set[str] = field(default_factory=set)
    """Containers that belong to none of its engines, may run, and are not known to be gone: it is not started beside
    them (`orchestrator.leftovers`)."""
    suspicion: Suspicion | None = None
    """The host went down while this was being loaded: only a person starts it again."""
    guarded: EngineFailed | None = None
    """Its engine was stopped to keep the host alive: it comes back when there is memory for it."""
    barred: Why | None = None
    """The devices it needs cannot be had now: it starts by itself when they can."""
    failures: Failures = field(default_factory=Failures)
    stuck_until: float | None = None
    """A stop or a clean-up failed: it is tried again then, and nothing else before."""
    stuck: int = 0
    reason: Why | None = None
    phase: tuple[State, str, float] | None = None
    """What the work in hand is doing, and since when."""
    transfer: Transfer | None = None
    """Bytes of an image on their way, while the work in hand waits for them."""
    rung: RungView | None = None
    """The lower rung that it stands on; `orchestrator.restarting` alone sets it."""
    busy: bool = False
    restarts: int = 0
    governor: GovernorState = field(default_factory=GovernorState)
    last_log: Sequence[LogLine] = ()
    """The log of the last engine that ended, which Podman no longer has."""
    last_start_s: float | None = None
    usual_start_s: float | None = None
    """What a start of this plan takes elsewhere, until this host has seen one."""
    lost_told: Counter[str] = field(default_factory=Counter)
    """What the journal has of requests that engines lost, by the gateway's counter (`orchestrator.lost_answers`)."""
    granted_s: float | None = None
    """How long the start in hand may take, while nothing is seen of its getting on."""
    switches: Counter[str] = field(default_factory=Counter)
    """How switches ended: done, refused, taken_back."""

    @property
    def name(self) -> str:
        return self.entry.name

    def live(self) -> list[Engine]:
        """Engines that are not gone."""
        return [e for e in self.engines if e.state not in GONE]

    def engine(self, generation: int | None) -> Engine | None:
        return next((e for e in self.engines if e.generation == generation), None)

    @property
    def serving_engine(self) -> Engine | None:
        return self.engine(self.serving)

    def situation(self, now: float) -> Situation:
        """What `lifecycle.decide` looks at."""
        retry_at = self.failures.retry_at
        return Situation(
            running=self.should_run,
            wanted=None if self.wanted is None else self.wanted.digest,
            engines=tuple(e.facts(now) for e in self.live()),
            serving=self.serving if self.serving_engine in self.live() else None,
            retry_in=None if retry_at is None else max(0.0, retry_at - now),
            parked=self.failures.parked,
            stuck_in=None if self.stuck_until is None else max(0.0, self.stuck_until - now),
            held=self.held,
        )

    @property
    def held(self) -> str | None:
        """The code of what keeps it from being started, whatever is tried."""
        if self.suspicion is not None:
            return self.suspicion.why.code
        # an engine that comes up has its driver and its GPU; one whose GPU is lost is failed by whoever found that
        if self.barred is not None and not self.loading:
            return self.barred.code
        if self.remains and not self.loading:
            return REMAINS
        return None if self.after is None else TURN

    @property
    def loading(self) -> bool:
        """Whether an engine is on its way."""
        return any(e.state in COMING for e in self.live())

    @property
    def speculating(self) -> bool:
        """Whether what serves drafts tokens."""
        engine = self.serving_engine
        return engine is not None and engine.plan.method.value != "none"

    @property
    def should_run(self) -> bool:
        called = self.desired is Desired.ON_DEMAND and self.called
        return (called or self.desired is Desired.RUNNING) and not self.halted

    def images(self) -> tuple[bool, tuple[str, ...]]:
        """Whether it runs or is to run, and the images of its engines and of the plan it would start from."""
        live = self.live()
        wanted = () if self.wanted is None else (self.wanted.image,)
        named = () if self.entry.image is None else (self.entry.image,)
        return bool(live) or self.desired is not Desired.STOPPED, (*(e.plan.image for e in live), *wanted, *named)

    # how it looks

    @property
    def shown_reason(self) -> Why | None:
        """Why it is not as it should be."""
        if self.uncallable is not None and not self.called:
            return self.uncallable
        if self.suspicion is not None and self.serving_engine is None:
            return self.suspicion.why
        if self.barred is not None and self.should_run and self.serving_engine is None:
            return self.barred
        if self.remains and self.should_run and not self.live():
            return Why(REMAINS, "what a former daemon left of it is being removed")
        if self.after is not None and self.should_run:
            return Why(TURN, f"waiting for its turn (after {self.after})")
        if self.desired is Desired.STOPPED and not self.live():
            return None  # it is as it should be, whatever it failed of before; the journal has that
        return self.reason

    @property
    def waits_for_device(self) -> bool:
        """Whether its last attempt found that a device is not there."""
        return self.reason is not None and self.reason.code == DeviceMissing.code

    def shown_state(self) -> State:
        """The one state that `ps` shows."""
        engine = self.serving_engine
        if engine is not None and engine.state is State.READY and self.drained:
            return State.DRAINING
        if engine is not None:
            return engine.state
        live = self.live()
        if live:
            newest = max(live, key=lambda e: e.generation)
            return State.WARMING if newest.state is State.READY else newest.state  # proven, and not yet in service
        if self.desired is Desired.STOPPED:
            return State.STOPPED
        if self.desired is Desired.ON_DEMAND and not self.called:
            return State.FAILED if self.failures.parked else State.IDLE
        reason = self.shown_reason
        if reason is not None and reason.code == PAUSED:
            return State.STOPPED
        if reason is not None and reason.code in PASSING:
            return State.CREATING
        if reason is not None and reason.code == DeviceMissing.code:
            return State.WAITING_DEVICE
        if reason is not None and not self.busy:
            return State.FAILED
        return self.phase[0] if self.phase is not None else State.CREATING

    def route(self, now: float, patience: float = 0.0) -> Route:
        """What the gateway needs to know. Requests are held over a back-off that ends within `patience` seconds."""
        engines = tuple(
            RouteEngine(
                engine=e.id,
                generation=e.generation,
                socket=e.socket if e.plan.socket else None,
                port=None if e.plan.socket else e.port,
                key=e.key,
                plan=e.plan.digest,
                method=e.plan.method.value,
                admit=e.admit
                and e.generation == self.serving
                and not self.drained
                and e.state is State.READY
                and e.unready is None
                and not e.exited.is_set(),
            )
            for e in self.live()
            if e.state in (State.READY, State.DRAINING)
        )
        served = any(e.admit for e in engines)
        on_its_way = any(e.state in COMING or e.exited.is_set() or e.unready is not None for e in self.live())
        passing = self.after is not None or bool(self.remains)
        coming = self.busy or on_its_way or passing or self._comes_back(now, patience)
        return Route(
            name=self.name,
            aliases=self.entry.aliases,
            state=self.shown_state(),
            hold=not served
            and not self.drained
            and not self.failures.parked
            and ((self.should_run and coming) or self._comes_when_called(now, patience)),
            reason=None if served else self.shown_reason or self._on_its_way(now),
            retry_after_s=None if served else self._retry_after(now),
            engines=engines,
        )

    def _on_its_way(self, now: float) -> Why | None:
        """What is being done to bring it up, and how far that is."""
        found = self._progress(now)
        if found is None or not self.should_run:
            return None
        parts = [] if found.fraction is None else [f"{found.fraction * 100:.0f} %"]
        if found.eta_s:
            parts.append(f"about {math.ceil(found.eta_s)} s left")
        elif found.late:
            parts = ["for longer than usual"]
        far = f" ({', '.join(parts)})" if parts else ""
        return Why(found.phase.value, f"{found.detail or 'it is started'}{far}; it goes on, ask again later")

    def _retry_after(self, now: float) -> float | None:
        """Seconds after which a client that is turned away may come again; None when nobody can tell."""
        if self.failures.parked or self.suspicion is not None or (self.uncallable is not None and not self.called):
            return FOR_A_PERSON
        if self.failures.delay is not None:
            return round(self.failures.delay, 1)
        found = self._progress(now)
        return None if found is None or not found.eta_s else float(math.ceil(found.eta_s))

    def _comes_when_called(self, now: float, patience: float) -> bool:
        """Whether the next request brings it up, or one that waits already has it come again."""
        if self.desired is not Desired.ON_DEMAND or self.halted or self.called:
            return False
        retry_at = self.failures.retry_at
        free = self.uncallable is None and (self.held is None or self.held in PASSING)
        return free and (retry_at is None or retry_at - now <= patience)

    def _comes_back(self, now: float, patience: float) -> bool:
        """Whether it is between two tries that are close enough for requests to wait."""
        retry_at = self.failures.retry_at
        return self.wanted is not None and retry_at is not None and retry_at - now <= patience

    def view(self, gateway: GatewayLink, now: float) -> DeploymentView:
        """What the API shows."""
        engines = tuple(e.view(gateway.engine_in_flight(e.id)) for e in self.live())
        shown = (
            self.serving if self.serving_engine is not None else max((e.generation for e in self.live()), default=None)
        )
        retry_at = self.failures.retry_at
        serving = self.serving_engine
        return DeploymentView(
            deployment=self.name,
            desired=self.desired,
            desired_by=self.desired_by,
            state=self.shown_state(),
            reason=self.shown_reason,
            host=self.host,
            engine=next((e for e in engines if e.generation == shown), None),
            engines=engines,
            in_flight=gateway.in_flight(self.name),
            waiting=gateway.waiting(self.name),
            plan=None if self.wanted is None else self.wanted.digest,
            drifted=serving is not None and self.fresh is not None and self.fresh != serving.plan.digest,
            progress=self._progress(now),
            next_attempt_s=None
            if retry_at is None or self.desired is Desired.STOPPED or serving is not None or self.held is not None
            else round(max(0.0, retry_at - now), 1),
            restarts=self.restarts,
            rung=self.rung,
        )

    def _progress(self, now: float) -> Progress | None:
        if self.phase is None:
            return None
        state, detail, since = self.phase
        elapsed = max(0.0, now - since)
        if self.transfer is not None:
            fraction, left = self.transfer.fraction, self.transfer.left(now)
            return Progress(
                state,
                detail,
                round(elapsed, 1),
                fraction=None if fraction is None else round(fraction, 3),
                eta_s=None if left is None else round(left, 1),
            )
        usual = self.last_start_s if self.last_start_s is not None else self.usual_start_s
        if usual is None or state not in COMING:
            return Progress(state, detail, round(elapsed, 1))
        left = usual - elapsed
        return Progress(
            state,
            detail,
            round(elapsed, 1),
            fraction=round(elapsed / usual, 2) if left > 0 else None,
            eta_s=round(left, 1) if left > 0 else None,
            usual_s=round(usual, 1),
            granted_s=None if self.granted_s is None else round(self.granted_s, 1),
        )
