"""The lifecycle of engines and deployments, as a pure table, its invariants, and one pure decision.

    PULLING -> CREATING -> LOADING -> WARMING -> READY -> DRAINING -> STOPPING -> STOPPED
       \\___________\\__________\\__________\\_________\\__________\\__ FAILED __/
                                                                 WEDGED __/

An engine is created from one plan and never changes it. A deployment is what a
person asked for; `decide` says the next single step that brings the one nearer
to the other. It is asked again after each step, so a step that was cut off (by a
stop, a crash, a new daemon) is found and finished by the same rule.

`python -m orchestrator.lifecycle_drawing` draws the table into design.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from orchestrator.decision import Decision
from orchestrator.views import State

TABLE: Mapping[State, Mapping[State, str]] = {
    State.PULLING: {
        State.CREATING: "its image is here",
        State.STOPPING: "called off",
        State.FAILED: "no image, or cut off",
    },
    State.CREATING: {
        State.LOADING: "its process runs",
        State.STOPPING: "called off",
        State.FAILED: "no memory, no container, or cut off",
    },
    State.LOADING: {
        State.WARMING: "its health path says so",
        State.STOPPING: "called off",
        State.FAILED: "ended, or took too long",
    },
    State.WARMING: {
        State.READY: "a completion came back right",
        State.STOPPING: "called off",
        State.FAILED: "ended, or answered wrong",
    },
    State.READY: {
        State.DRAINING: "nothing more is admitted",
        State.STOPPING: "what it runs on is gone",
        State.FAILED: "ended, or not live",
    },
    State.DRAINING: {
        State.READY: "called off",
        State.STOPPING: "nothing in flight, or time is up",
        State.FAILED: "ended, or not live",
    },
    State.STOPPING: {
        State.STOPPED: "process, memory and files are free",
        State.FAILED: "not live while it stops",
        State.WEDGED: "its process outlives a forced removal",
    },
    State.FAILED: {
        State.STOPPING: "restarted by a person",
        State.STOPPED: "what was left is gone",
        State.WEDGED: "its process outlives a forced removal",
    },
    State.WEDGED: {State.STOPPED: "its process has gone after all"},
    State.STOPPED: {},
}
"""Where an engine may go from each state, and what takes it there."""

BIRTH: Mapping[State, str] = {
    State.PULLING: "started",
    State.LOADING: "adopted, unproven",
    State.READY: "adopted, proven",
}
"""In which states an engine's record may begin."""

TRANSITIONS: Mapping[State, frozenset[State]] = {before: frozenset(after) for before, after in TABLE.items()}

COMING = frozenset({State.PULLING, State.CREATING, State.LOADING, State.WARMING})
"""States of an engine that does not serve yet and is on its way."""
GONE = frozenset({State.STOPPED})
ADMITTING = frozenset({State.READY, State.DRAINING})
"""States of an engine that answers requests, if only those in flight."""
SERVING = ADMITTING | {State.STOPPING}
"""States that an engine goes through while it is the one that serves."""
CONTAINED = ADMITTING | {State.LOADING, State.WARMING}
"""States in which an engine has a container; in others it may have one."""


def allowed(before: State, after: State) -> bool:
    """Whether an engine may go from one state to the other (staying is allowed)."""
    return before == after or after in TRANSITIONS.get(before, ())


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """One engine as the decision sees it."""

    generation: int
    state: State
    digest: str
    again_in: float | None = None
    """Of a wedged one: how long to wait before its removal is tried again."""


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
    """The next single step. Evidence names the generation it is about.

    A wedged engine is in nobody's way: its memory stays promised until it is gone, what fits beside that may
    start, and its removal is tried again when there is nothing else to do.
    """
    decision = _next(situation, [e for e in situation.engines if e.state not in GONE and e.state is not State.WEDGED])
    wedged = [e for e in situation.engines if e.state is State.WEDGED]
    if not wedged or decision.action not in (Step.SETTLED, Step.WAIT):
        return decision
    for engine in wedged:
        if not engine.again_in and not situation.stuck_in:
            return _about(Step.CLEAN, "engine_wedged", engine)
    if decision.action is Step.WAIT or situation.running:
        return decision
    return _about(Step.WAIT, "engine_wedged", wedged[0])


def _next(situation: Situation, live: list[EngineFacts]) -> Decision[Step]:
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


# invariants


def broken(situation: Situation) -> str | None:
    """What can never be of a deployment and its engines, if it is so: a defect."""
    generations = [e.generation for e in situation.engines]
    if len(set(generations)) < len(generations):
        return f"two engines of one generation: {sorted(generations)}"
    serving = next((e for e in situation.engines if e.generation == situation.serving), None)
    if situation.serving is not None and (serving is None or serving.state not in SERVING):
        return f"generation {situation.serving} serves, and is {serving.state if serving else 'not there'}"
    return None


def forbidden(situation: Situation, decision: Decision[Step]) -> str | None:
    """Why this step may never be taken in this situation, whoever decided it; None when it may.

    Above all: nothing is brought up beside an engine that is there, but for the one that a switch goes to.
    """
    step, generation = decision.action, decision.evidence.get("generation")
    there = [e for e in situation.engines if e.state not in GONE and e.state is not State.WEDGED]
    about = next((e for e in situation.engines if e.generation == generation), None)
    if step in (Step.PLAN, Step.START, Step.CONTINUE, Step.SWITCH) and not situation.running:
        return "nothing is to run"
    match step:
        case Step.START if there:
            return f"generation {there[0].generation} is there ({there[0].state})"
        case Step.SWITCH:
            others = [e for e in there if e.generation != situation.serving]
            if situation.serving is None:
                return "nothing serves"
            if len(others) > 1 or any(e.state not in COMING or e.digest != situation.wanted for e in others):
                return f"generation {others[0].generation} is in the way ({others[0].state})"
        case Step.CONTINUE if about is None or about.state not in COMING | {State.READY, State.DRAINING}:
            return f"generation {generation} cannot go on"
        case Step.STOP if about is None or about.state in GONE or about.state is State.WEDGED:
            return f"generation {generation} cannot be stopped"
        case Step.CLEAN if about is None or about.state not in (State.FAILED, State.WEDGED):
            return f"generation {generation} has not failed"
        case _:
            pass
    return None
