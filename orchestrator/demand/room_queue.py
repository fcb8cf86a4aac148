"""The queue of starts that need room: whose turn it is, what is kept for whom, and who is asked to go.

First come, first served; what fits beside those who wait may go past them. The rule is `room`, the words are `words`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING

from orchestrator.admission import Admission, Claim, devices_of
from orchestrator.clock import Clock
from orchestrator.decision import Decision
from orchestrator.demand import room, words
from orchestrator.demand.keeping import Resident
from orchestrator.demand.room import RoomStep
from orchestrator.demand.unloading import Leaving
from orchestrator.events import Journal
from orchestrator.plan import Plan
from orchestrator.timing import Timing
from orchestrator.views import RoomView, State, Why

if TYPE_CHECKING:
    from orchestrator.actor import Actor
    from orchestrator.deployment import Deployment

WAITING = "waiting_for_room"
Seen = Callable[[State, str], None]


class RoomQueue:
    """One host's. All of it runs on the event loop."""

    def __init__(
        self,
        *,
        actors: Callable[[], Sequence[Actor]],
        resident: Callable[[Deployment], Resident | None],
        rules: Callable[[], room.Rules],
        admission: Admission,
        journal: Journal,
        clock: Clock,
        timing: Timing,
    ) -> None:
        """`resident` says what a deployment holds; `rules` what the owner says now."""
        self._actors, self._resident, self._rules = actors, resident, rules
        self._admission, self._journal = admission, journal
        self._clock, self._timing = clock, timing
        self._news = asyncio.Event()
        self._queue: list[str] = []
        """Models whose start waits for room, first come first served."""
        self._granted: dict[str, Mapping[str, int]] = {}
        """Bytes by device that are kept for a start until its engine has its own promise."""
        self._beside: dict[str, frozenset[str]] = {}
        """Engines whose memory such a start does not take: what is left of the model and does not go."""

    def noticed(self) -> None:
        """Something changed: whoever waits for room looks again."""
        self._news.set()

    @asynccontextmanager
    async def room_for(self, d: Deployment, plan: Plan, seen: Seen) -> AsyncIterator[None]:
        """Within it, nobody else is given the room that this plan needs. Waits for it, and has others unloaded for
        it; raises `DoesNotFit`, which names who is in the way, when it cannot be had. To be used within the
        deployment's own step: `seen` is told what is being waited for."""
        needs = self._needs(plan)
        self._queue.append(d.name)
        try:
            await self._make_room(d, needs, seen)
            self._grant(d, needs)
            self._queue.remove(d.name)
            yield
        finally:
            self._granted.pop(d.name, None)
            with suppress(ValueError):
                self._queue.remove(d.name)
            if d.reason is not None and d.reason.code == WAITING:
                d.reason = None
            self.noticed()

    @contextmanager
    def kept_for(self, d: Deployment, plan: Plan) -> Iterator[None]:
        """Within it, one engine of this deployment follows another: what the one leaves is for the other, and nobody
        else of its groups comes between."""
        self._grant(d, self._needs(plan))
        try:
            yield
        finally:
            self._granted.pop(d.name, None)
            self.noticed()

    def kept(self, d: Deployment, devices: Sequence[str]) -> int:
        """Bytes that are kept for starts of others, on the device where that is the most."""
        return max((self._kept(d, device) for device in devices), default=0)

    def _grant(self, d: Deployment, needs: Mapping[str, int]) -> None:
        going = {e.id for e in d.live() if e.state is not State.WEDGED}
        self._granted[d.name], self._beside[d.name] = needs, frozenset(self._claims(d.name)) - going

    def _kept(self, d: Deployment, device: str) -> int:
        granted = [(m, n) for m, n in self._granted.items() if m != d.name]
        return sum(n.get(device, 0) for m, n in granted if not self._claims(m).keys() - self._beside[m])

    async def _make_room(self, d: Deployment, needs: Mapping[str, int], seen: Seen) -> None:
        begun = self._clock.now()
        said: object = None
        shown: str | None = None
        while True:
            decision = self._decide(d, needs, self._clock.now() - begun)
            if decision.action is RoomStep.READY:
                return
            if decision.action is RoomStep.REFUSE:
                raise words.no_room(d.name, decision)
            text = words.waiting(d.name, decision)
            if text != shown:  # showing it wakes all who wait: two of them would keep each other awake
                shown, d.reason = text, Why(WAITING, text)
                seen(State.CREATING, text)
            if decision.action is RoomStep.EVICT:
                self._grant(d, needs)
                await self._evict(d, decision)
            elif said != decision.reason:
                said = decision.reason
                self._say(d, WAITING, text, decision.evidence)
            await self._until_news(decision)

    def _decide(self, d: Deployment, needs: Mapping[str, int], waited: float) -> Decision[RoomStep]:
        decision = room.decide(self._asked(d, needs, waited), self.residents(d.name), self._rules())
        first = self._queue[0] if self._queue else d.name
        if first != d.name and decision.action is RoomStep.EVICT:
            return Decision(RoomStep.WAIT, "queued", {**decision.evidence, "after": first})
        return decision

    def residents(self, but: str) -> list[Resident]:
        """All that is loaded or about to be, without `but`."""
        found = [r for a in self._actors() if a.deployment.name != but and (r := self._resident(a.deployment))]
        names = {r.name for r in found}
        return found + [Resident(n, loading=True) for n in self._granted if n not in names and n != but]

    def _needs(self, plan: Plan) -> Mapping[str, int]:
        return dict.fromkeys(devices_of(plan, self._admission.facts), plan.expected_memory.total)

    def _asked(self, d: Deployment, needs: Mapping[str, int], waited: float) -> room.Asked:
        free: dict[str, int] = {}
        for device in needs:
            left = self._admission.free((device,))
            if left is not None:
                free[device] = max(0, left - self._kept(d, device))
        return room.Asked(d.name, needs, free, waited)

    def _claims(self, model: str) -> dict[str, Claim]:
        return {engine: claim for engine, claim in self._admission.claims().items() if claim.model == model}

    def held(self, d: Deployment) -> list[Claim]:
        """What would come free if it were unloaded; of one of which nothing goes any more, what it holds."""
        going = {e.id for e in d.live() if e.state is not State.WEDGED}
        claims = self._claims(d.name)
        return [claim for engine, claim in claims.items() if engine in going] if going else list(claims.values())

    async def _evict(self, d: Deployment, decision: Decision[RoomStep]) -> None:
        going = [str(name) for name in words.listed(decision.evidence["evict"])]
        drained = set(words.listed(decision.evidence["drain"]))
        for actor in self._actors():
            name = actor.deployment.name
            if name not in going:
                continue
            text = f"{name} makes room for {d.name}" + (" once its last answers have ended" if name in drained else "")
            limit = self._timing.drain if name in drained else self._timing.unload_drain
            self._say(actor.deployment, "evicted", text, {"by": d.name, "why": decision.reason, **decision.evidence})
            await actor.let_go(Leaving("evicted", text, limit, by=d.name))

    async def _until_news(self, decision: Decision[RoomStep]) -> None:
        again = decision.evidence.get("again_in_s")
        pause = self._timing.demand_period
        if isinstance(again, int | float):
            pause = min(pause, max(0.001, float(again)))
        self._news.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._news.wait()

    def _say(self, d: Deployment, code: str, text: str, evidence: Mapping[str, object]) -> None:
        self._journal.emit("demand", code, text, deployment=d.name, evidence=evidence)

    def preview(self, d: Deployment, plan: Plan) -> RoomView:
        """What would have to go now so that this plan could be started. Changes nothing."""
        needs = self._needs(plan)
        if d.serving_engine is not None:
            return RoomView(d.name, "ready", "serving", needs, {}, (), {})
        decision = room.decide(self._asked(d, needs, 0.0), self.residents(d.name), self._rules())
        free = decision.evidence["free_bytes"]
        return RoomView(
            deployment=d.name,
            action=decision.action.value,
            reason=decision.reason,
            needed_bytes=needs,
            free_bytes=dict(free) if isinstance(free, Mapping) else {},
            evict=tuple(str(name) for name in words.listed(decision.evidence.get("evict"))),
            kept=words.stays(decision),
        )
