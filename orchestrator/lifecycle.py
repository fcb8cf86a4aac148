"""The lifecycle of engines and deployments, as pure tables and one pure decision.

    PULLING -> CREATING -> LOADING -> WARMING -> READY -> DRAINING -> STOPPING -> STOPPED
       \\___________\\__________\\__________\\_________\\__________\\________> FAILED

An engine is created from one plan and never changes it. A deployment is what a
person asked for; `decide` says the next single step that brings the one nearer
to the other. It is asked again after each step, so a step that was cut off (by a
stop, a crash, a new daemon) is found and finished by the same rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.decision import Decision
from orchestrator.views import State

TRANSITIONS: dict[State, frozenset[State]] = {
    State.PULLING: frozenset({State.CREATING, State.STOPPING, State.FAILED}),
    State.CREATING: frozenset({State.LOADING, State.STOPPING, State.FAILED}),
    State.LOADING: frozenset({State.WARMING, State.STOPPING, State.FAILED}),
    State.WARMING: frozenset({State.READY, State.STOPPING, State.FAILED}),
    State.READY: frozenset({State.DRAINING, State.STOPPING, State.FAILED}),
    State.DRAINING: frozenset({State.READY, State.STOPPING, State.FAILED}),
    State.STOPPING: frozenset({State.STOPPED, State.FAILED}),
    State.FAILED: frozenset({State.STOPPING, State.STOPPED}),
    State.STOPPED: frozenset(),
}
"""Where an engine may go from each state. DRAINING may return to READY: a drain can be called off."""

COMING = frozenset({State.PULLING, State.CREATING, State.LOADING, State.WARMING})
"""States of an engine that does not serve yet and is on its way."""
GONE = frozenset({State.STOPPED})


def allowed(before: State, after: State) -> bool:
    """Whether an engine may go from one state to the other (staying is allowed)."""
    return before == after or after in TRANSITIONS.get(before, ())


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """One engine as the decision sees it."""

    generation: int
    state: State
    digest: str


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything the next step depends on.

    `wanted` is the digest of the plan to run, None while there is no plan.
    `retry_in` is how long a failed deployment has to wait, None when it may try now.
    `parked` is set when only a person can make the next attempt sensible.
    """

    running: bool
    wanted: str | None
    engines: tuple[EngineFacts, ...]
    serving: int | None
    retry_in: float | None = None
    parked: bool = False
    stuck_in: float | None = None
    """How long to wait before a stop or a clean-up that failed is tried again."""
    held: str | None = None
    """Why nothing may come up now although it should run: a reason code."""


class Step(StrEnum):
    """The next step of a deployment."""

    SETTLED = "settled"
    WAIT = "wait"
    PLAN = "plan"
    START = "start"
    CONTINUE = "continue"
    SWITCH = "switch"
    STOP = "stop"
    CLEAN = "clean"


def decide(situation: Situation) -> Decision[Step]:
    """The next single step. Evidence names the generation it is about."""
    live = [e for e in situation.engines if e.state not in GONE]
    if situation.stuck_in is not None and situation.stuck_in > 0:
        return Decision(Step.WAIT, "backing_off", {"seconds": round(situation.stuck_in, 3)})
    for engine in live:
        if engine.state is State.FAILED:
            return _about(Step.CLEAN, "engine_failed", engine)
    for engine in live:
        if engine.state is State.STOPPING:
            return _about(Step.STOP, "stop_unfinished", engine)
    if not situation.running:
        # what serves goes last, so that a stop never has an older engine take over
        for engine in sorted(live, key=lambda e: e.generation == situation.serving):
            return _about(Step.STOP, "desired_stopped", engine)
        return Decision(Step.SETTLED, "stopped")
    return _towards_running(situation, live)


def _towards_running(situation: Situation, live: list[EngineFacts]) -> Decision[Step]:
    serving = next((e for e in live if e.generation == situation.serving), None)
    if serving is None:
        return _until_served(situation, live)
    if serving.state is State.DRAINING:
        return _about(Step.CONTINUE, "drain_called_off", serving)
    settled = situation.wanted in (None, serving.digest)
    for engine in live:
        halfway = not settled and engine.state in COMING and engine.digest == situation.wanted
        if engine is not serving and not halfway:
            return _about(Step.STOP, "superseded", engine)
    if settled:
        return Decision(Step.SETTLED, "serving", {"generation": serving.generation})
    if situation.held is not None:
        return Decision(Step.WAIT, situation.held)  # what serves goes on serving
    if _waits(situation):
        return Decision(Step.WAIT, "backing_off", {"seconds": round(situation.retry_in or 0.0, 3)})
    return Decision(Step.SWITCH, "plan_changed", {"generation": serving.generation, "plan": situation.wanted})


def _until_served(situation: Situation, live: list[EngineFacts]) -> Decision[Step]:
    """No engine serves: finish one that is on its way, or start one."""
    proven = [e for e in live if e.state not in COMING]
    if proven:
        return _about(Step.CONTINUE, "engine_ready", max(proven, key=lambda e: e.generation))
    for engine in live:
        if situation.wanted not in (None, engine.digest):
            return _about(Step.STOP, "plan_changed", engine)
    if situation.held is not None:
        if live:
            return _about(Step.STOP, situation.held, max(live, key=lambda e: e.generation))
        return Decision(Step.WAIT, situation.held)
    if situation.parked:
        return Decision(Step.WAIT, "parked")
    if _waits(situation):
        return Decision(Step.WAIT, "backing_off", {"seconds": round(situation.retry_in or 0.0, 3)})
    if live:
        return _about(Step.CONTINUE, "start_unfinished", max(live, key=lambda e: e.generation))
    if situation.wanted is None:
        return Decision(Step.PLAN, "no_plan")
    return Decision(Step.START, "not_running", {"plan": situation.wanted})


def _waits(situation: Situation) -> bool:
    return situation.retry_in is not None and situation.retry_in > 0


def _about(step: Step, reason: str, engine: EngineFacts) -> Decision[Step]:
    return Decision(step, reason, {"generation": engine.generation, "state": engine.state.value})
