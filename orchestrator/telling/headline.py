"""How a deployment is now, in one or two sentences. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.telling.amounts import ago, duration
from orchestrator.telling.parts import Part
from orchestrator.views import DeploymentView, Desired, State

_COMING = {
    State.PULLING: "is coming up: its image is fetched",
    State.CREATING: "is coming up",
    State.LOADING: "is coming up: its engine is loading the model",
    State.WARMING: "is coming up: its engine is asked for a first answer",
}
Past = Sequence[tuple[Part, str, float]]
"""What happened, oldest first: the part it plays, what is said of it, how many seconds ago it was."""


def headline(view: DeploymentView, past: Past) -> str:
    """How it is, and what the last trouble was."""
    name = view.deployment
    now = f"{name} {_now(view)}"
    if view.state in (State.READY, State.DRAINING):
        return f"{now}.{_recovered(past)}"
    return f"{now}."


def _now(view: DeploymentView) -> str:
    why = "" if view.reason is None else f": {_of(view, view.reason.text)}"
    if view.state in _COMING:
        detail = view.progress.detail if view.progress is not None else None
        last = "" if view.reason is None else f" after a failure ({_of(view, view.reason.text)})"
        late = ", for longer than usual" if view.progress is not None and view.progress.late else ""
        told = f" ({detail})" if detail and detail not in _COMING[view.state] and not last else last
        return f"{_COMING[view.state]}{late}{told}"
    match view.state:
        case State.READY:
            return "serves"
        case State.DRAINING:
            return "finishes what it has and takes nothing new"
        case State.STOPPING:
            return "is being stopped"
        case State.STOPPED if wanted(view) and view.reason is not None:
            return f"does not run{why}"
        case State.STOPPED:
            return f"is stopped, as {view.desired_by} asked" if view.desired_by else "is stopped: nobody started it"
        case State.WAITING_DEVICE:
            return f"waits for a device{why}"
        case State.IDLE:
            return f"sleeps{why}" if why else "sleeps: the next request starts it"
        case State.FAILED:
            return f"does not run{why}"
        case other:
            return f"is {other.value.replace('_', ' ')}{why}"


def _of(view: DeploymentView, text: str) -> str:
    return text.removeprefix(f"{view.deployment}: ")


def _recovered(past: Past) -> str:
    """What the last trouble was, and how long it lasted, where it is over."""
    well = [when for what, _, when in past if what is Part.WELL]
    troubles = [(text, when) for what, text, when in past if what is Part.TROUBLE]
    if not troubles or not well:
        return ""
    text, when = troubles[-1]
    over = [at for at in well if at <= when]
    if not over:
        return f" The last trouble was {ago(when)}: {text}"
    first_of_it = when
    before = [at for at in well if at > when]
    if before:
        first_of_it = max((w for _, w in troubles if w < before[-1]), default=when)
    return f" The last trouble was {ago(when)} and over after {duration(first_of_it - over[0])}: {text}"


def wanted(view: DeploymentView) -> bool:
    """Whether it is meant to be there."""
    return view.desired is not Desired.STOPPED
