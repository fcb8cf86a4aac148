"""The memory guard: looks several times a second, and ends an engine before the host freezes.

What to do, `guard_policy.decide` says. This carries it out with as little as can be done on a machine
that is short of everything: two reads of procfs, and one signal through a descriptor that is open
already. Podman, the database and the disk are not waited for; the engine's own task cleans up
afterwards. Requests in flight end with an error: there is no time to drain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from containers.errors import ContainerError
from hosts.pressure import MemoryPressure
from orchestrator import guard_policy
from orchestrator.actor import Actor
from orchestrator.admission import Admission, host_reserve
from orchestrator.clock import Clock
from orchestrator.config import GuardSettings
from orchestrator.decision import Decision
from orchestrator.engine import Engine
from orchestrator.errors import MEMORY_GUARD, EngineFailed
from orchestrator.events import Journal
from orchestrator.guard_policy import Candidate, Guarding, Shortage, Watch
from orchestrator.issues import HOST, Issues
from orchestrator.memory_fit import gibibytes
from orchestrator.plan import Plan
from orchestrator.runner import Runner
from orchestrator.timing import Timing
from orchestrator.views import State

ISSUE = "memory_pressure"


@dataclass(slots=True)
class _Going:
    """An engine that was told to end."""

    engine: Engine
    at: float
    short_since: float
    late: bool = False


class Guard:
    """The guard of one host. `look` is its loop's round."""

    def __init__(
        self,
        settings: GuardSettings,
        *,
        read: Callable[[], MemoryPressure],
        admission: Admission,
        runner: Runner,
        journal: Journal,
        issues: Issues,
        clock: Clock,
        timing: Timing,
    ) -> None:
        """`read` gives the present numbers, and may not block."""
        self._settings = settings
        self._read = read
        self._admission = admission
        self._runner = runner
        self._journal = journal
        self._issues = issues
        self._clock = clock
        self._timing = timing
        self._looks = 0
        self._short_since: float | None = None
        self._last_short: float | None = None
        self._stalled: tuple[float, int] | None = None
        self._going: _Going | None = None
        self._kills: set[asyncio.Task[None]] = set()
        admission.floor = self.floor

    def configure(self, settings: GuardSettings) -> None:
        """Take up other settings at once."""
        self._settings = settings
        if not settings.enabled:
            self._looks, self._short_since, self._last_short = 0, None, None
            self._issues.close(ISSUE, HOST, "the guard is switched off")

    @property
    def reserve(self) -> int:
        """Bytes that must stay available: as set, else half of what the planner leaves alone. The other half is
        what the rest of the system may grow by without an engine having to go for it."""
        return self._settings.reserve_bytes or host_reserve(self._admission.facts) // 2

    def floor(self) -> int:
        """Bytes of system memory that no start may count on: what is free below that would be taken back at once."""
        kept = host_reserve(self._admission.facts)
        return max(kept, self.reserve + kept // 2) if self._settings.enabled else kept

    def room_for(self, plan: Plan) -> bool:
        """Whether an engine that was stopped for memory may come back: its bytes are free above the floor, and
        nothing is short now."""
        free = self._admission.free_for(plan)
        return not self._issues.holds(ISSUE) and (free is None or plan.expected_memory.total <= free)

    async def look(self, actors: Sequence[Actor]) -> None:
        """One look. Returns without having waited for anything."""
        if not self._settings.enabled:
            return
        now, reading = self._clock.now(), self._read()
        shortage = Shortage(
            available=reading.available,
            reserve=self.reserve,
            full_avg10=reading.full_avg10,
            stalled=self._stalled_since(now, reading.stalled_us),
            pressure=self._settings.pressure,
        )
        self._follow_up(now)
        if guard_policy.shortage(shortage) is None:
            self._enough(now, shortage)
            return
        self._last_short = now
        self._short_since = now if self._short_since is None else self._short_since
        going = None if self._going is None else now - self._going.at
        found = {candidate.engine: (actor, engine, candidate) for actor, engine, candidate in self._engines(actors)}
        decision = guard_policy.decide(
            shortage,
            Watch(self._looks, going, self._timing.guard_kill),
            [candidate for _, _, candidate in found.values()],
        )
        self._looks += 1
        match decision.action:
            case Guarding.STOP:
                actor, engine, _ = found[str(decision.evidence["engine"])]
                self._stop(actor, engine, decision, now)
                self._hold(decision, engine)
            case Guarding.HELPLESS if self._issues.holds(ISSUE) or any(a.deployment.guarded for a in actors):
                self._hold(decision, None)
            case Guarding.HELPLESS | Guarding.REST | Guarding.WATCH | Guarding.WAIT:
                pass

    def _engines(self, actors: Sequence[Actor]) -> Iterator[tuple[Actor, Engine, Candidate]]:
        """Those whose memory is the system's and whose process runs, but for the one that is going."""
        for actor in actors:
            entry = actor.deployment.entry
            for engine in actor.deployment.live():
                if self._going is not None and engine is self._going.engine:
                    continue
                if engine.pid is None or engine.exited.is_set() or not self._admission.on_host(engine.plan):
                    continue
                candidate = Candidate(
                    engine=engine.name,
                    deployment=actor.deployment.name,
                    generation=engine.generation,
                    preemptible=entry.preemptible,
                    priority=entry.priority,
                    since=engine.since,
                    leaving=engine.state in (State.STOPPING, State.FAILED, State.WEDGED),
                    told=engine.verdict is not None and engine.verdict.code == MEMORY_GUARD,
                )
                yield actor, engine, candidate

    def _stalled_since(self, now: float, stalled_us: int | None) -> float | None:
        before, self._stalled = self._stalled, None if stalled_us is None else (now, stalled_us)
        if before is None or stalled_us is None or now <= before[0]:
            return None
        return max(0.0, min(100.0, (stalled_us - before[1]) / 1e4 / (now - before[0])))

    def _stop(self, actor: Actor, engine: Engine, decision: Decision[Guarding], now: float) -> None:
        """Kill first, tell afterwards."""
        numbers = decision.evidence
        why = _in_words(decision)
        verdict = EngineFailed(
            MEMORY_GUARD,
            f"{engine.name} was stopped to keep the host from freezing: {why}",
            hint="it comes back when there is memory for it again; find what takes the memory (`outrider issues`,"
            " `ps aux --sort=-rss | head`), or give this model less context",
            evidence=numbers,
        )
        at_once = actor.end_engine(engine, verdict)
        if not at_once:  # another user's process: rootless Podman may do what we may not
            kill = asyncio.create_task(self._kill(engine), name=f"guard-kill-{engine.name}")
            self._kills.add(kill)
            kill.add_done_callback(self._kills.discard)
        short_since = now if self._short_since is None else self._short_since
        self._going = _Going(engine, now, short_since)
        self._looks = 0
        self._journal.emit(
            "guard",
            "engine_stopped",
            f"{engine.name} is stopped: {why}; it goes first because it is {_because(str(numbers['chosen']))}."
            " Requests in flight end with an error, there is no time to drain",
            deployment=engine.deployment,
            evidence={
                "generation": engine.generation,
                "state": engine.state.value,
                "reason": decision.reason,
                **numbers,
            },
        )

    async def _kill(self, engine: Engine) -> None:
        try:
            async with asyncio.timeout(self._timing.guard_kill):
                await self._runner.podman.kill(engine.container_id or "")
        except (ContainerError, TimeoutError) as error:
            self._journal.emit(
                "guard", "not_killed", f"{engine.name}: {str(error) or 'no answer'}", deployment=engine.deployment
            )

    def _follow_up(self, now: float) -> None:
        """Tell when the engine has gone, or that it does not."""
        going = self._going
        if going is None:
            return
        engine, took = going.engine, now - going.at
        if engine.exited.is_set():
            self._going = None
            self._looks = 0  # what it held comes back now: memory has to be short twice more
            self._journal.emit(
                "guard",
                "engine_gone",
                f"{engine.name} has gone {now - going.short_since:.2f} s after memory became short",
                deployment=engine.deployment,
                evidence={
                    "generation": engine.generation,
                    "after_decision_s": round(took, 3),
                    "after_shortage_s": round(now - going.short_since, 3),
                },
            )
        elif took >= self._timing.guard_kill and not going.late:
            going.late = True
            self._journal.emit(
                "guard",
                "engine_not_gone",
                f"{engine.name} was killed {took:.1f} s ago and still runs: the next one has to go",
                deployment=engine.deployment,
                evidence={"generation": engine.generation, "pid": engine.pid},
            )

    def _hold(self, decision: Decision[Guarding], engine: Engine | None) -> None:
        self._issues.open(
            ISSUE,
            HOST,
            f"the host is short of memory: {_in_words(decision)}",
            hint="`ps aux --sort=-rss | head` shows who has it; models that were stopped come back by themselves",
            evidence={"reason": decision.reason, **decision.evidence},
            deployment=None if engine is None else engine.deployment,
        )

    def _enough(self, now: float, shortage: Shortage) -> None:
        self._looks, self._short_since = 0, None
        if self._last_short is not None and now - self._last_short >= self._timing.guard_calm:
            self._last_short = None
            available = "" if shortage.available is None else f", {gibibytes(shortage.available)} are available"
            self._issues.close(ISSUE, HOST, f"memory is no longer short{available}")


def _in_words(decision: Decision[Guarding]) -> str:
    numbers = decision.evidence
    available, reserve = numbers["available_bytes"], numbers["reserve_bytes"]
    if decision.reason == "memory_low" and isinstance(available, int) and isinstance(reserve, int):
        return f"{gibibytes(available)} of memory are available and {gibibytes(reserve)} must be"
    return f"all tasks waited for memory in {numbers['full_avg10']} % of the last ten seconds"


def _because(chosen: str) -> str:
    words = {"leaving": "on its way out", "preemptible": "preemptible", "newest": "the newest"}
    return words[chosen]
