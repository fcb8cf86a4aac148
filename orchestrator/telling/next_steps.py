"""What comes next by itself, and what a person can do. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from orchestrator.telling.amounts import count, duration, within
from orchestrator.views import DeploymentView, Desired, Issue, State

_COMING = frozenset({State.PULLING, State.CREATING, State.LOADING, State.WARMING})

_COMMAND = re.compile(r"`[^`]+`")

_NEXT = {
    State.READY: "Nothing: it serves. If its engine fails, it is started again.",
    State.DRAINING: "It stays loaded and takes nothing new until somebody says `outrider start {name}`.",
    State.WAITING_DEVICE: "It starts by itself when the device is there.",
    State.IDLE: "It starts with the next request.",
    State.FAILED: "Nothing by itself: trying the same again would not help. It waits for you.",
    State.WEDGED: "Removing it is tried again and again; nothing is loaded in its place before it is gone.",
}
"""What follows from a state by itself."""


def what_comes(view: DeploymentView) -> Iterator[str]:
    """What Outrider will do without being asked, or that it will do nothing."""
    name = view.deployment
    if view.paused_by is not None:
        yield f"Nothing by itself: {view.paused_by} paused it. It would say here what it leaves undone."
        return
    if view.desired is Desired.STOPPED:
        yield "Its engine is stopped." if view.state is not State.STOPPED else "Nothing: it stays stopped."
        return
    if view.state in _COMING:
        yield _until_ready(view)
    elif view.next_attempt_s is not None:
        yield f"It is tried again {within(view.next_attempt_s)}."
    elif view.state is State.FAILED and view.rung is not None:
        yield f"Nothing soon: it failed down to the last rung ({view.rung.text}). It waits for you."
        yield f"The best plan is tried again in {duration(view.rung.up_in_s)}."
        return
    elif view.state in _NEXT:
        yield _NEXT[view.state].format(name=name)
    if view.rung is not None:
        again = duration(view.rung.up_in_s)
        yield f"It is on a lower rung ({view.rung.text}); the best plan is tried again in {again}."
    left = view.failures_left
    tried = view.state is not State.FAILED or view.next_attempt_s is not None
    if left is not None and tried and (left == 1 or view.rung is not None):
        more = "the next failure parks" if left == 1 else f"{count(left, 'more failure')} in a short time park"
        yield f"Nothing simpler is left to try on this host: {more} it, and then it waits for you."


def _until_ready(view: DeploymentView) -> str:
    progress = view.progress
    if progress is not None and progress.late and progress.usual_s is not None:
        granted = progress.granted_s
        until = "" if granted is None else f" {_granted(granted)}"
        taken, usual = duration(progress.elapsed_s), duration(progress.usual_s)
        return f"It takes longer than usual: {taken} instead of {usual}.{until}"
    if progress is None or progress.eta_s is None:
        return "It serves when its engine has loaded and answered correctly."
    return f"It serves when its engine has loaded and answered correctly, in about {duration(progress.eta_s)}."


def _granted(seconds: float) -> str:
    return f"It has {duration(seconds)}, and more only for as long as it is seen to get on; then it counts as failed."


def advice(view: DeploymentView, issues: Sequence[Issue] = ()) -> Iterator[str]:
    """What the owner of the machine can do, the likeliest help first; each command is named once."""
    said = set[str]()
    for text in _advice(view, issues):
        commands = set(_COMMAND.findall(text)) or {text}
        if not commands <= said:
            said |= commands
            yield text


def _advice(view: DeploymentView, issues: Sequence[Issue]) -> Iterator[str]:
    name = view.deployment
    wanted = view.desired is not Desired.STOPPED
    if wanted and view.reason is not None and view.reason.hint:
        yield view.reason.hint
    for issue in issues:
        if issue.hint:
            yield issue.hint
    if view.paused_by is not None:
        yield f"`outrider resume {name}` lets Outrider act again"
    if view.state is State.FAILED and wanted:
        yield f"`outrider start {name}` tries again now; `outrider logs {name}` has the engine's last lines"
        yield f"`outrider plan {name}` shows what would be launched, and what else there is"
    elif view.state in _COMING:
        yield f"`outrider logs {name} -f` shows what its engine says meanwhile"
    elif view.state is State.STOPPED:
        yield f"`outrider start {name}` starts it"
    if view.drifted:
        yield f"`outrider apply {name}` moves it to the plan that would be made today; `outrider plan {name}` shows it"
