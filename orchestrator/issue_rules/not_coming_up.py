"""A deployment that fails again and again and is still tried: it looks alive in every list, and serves nobody."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.issue_rules._sight import Found, Sight
from orchestrator.views import State

CODE = "not_coming_up"
OFTEN = 3
"""Failures in a row: as many as move an engine down its ladder."""
WAITS = frozenset({"waiting_for_turn", "waiting_for_room", "remains"})
"""Reasons that are no failure: it failed before, and waits for something else now."""


def detect(sight: Sight) -> Iterator[Found]:
    for view in sight.wanted():
        name, failures = view.deployment, sight.failures.get(view.deployment, 0)
        if failures < OFTEN or name in sight.parked or view.reason is None or view.reason.code in WAITS:
            continue
        if view.state is State.FAILED and view.next_attempt_s is None:
            continue  # it is not tried again before something else has happened, which is what is said of it
        text = view.reason.text.removeprefix(f"{name}: ")
        yield Found(
            name,
            f"{name} failed {failures} times in a row and is tried again; the last time: {text}",
            view.reason.hint or f"`outrider why {name}` tells the story",
            {"failures": failures, "failures_limit": OFTEN, "code": view.reason.code},
            name,
        )


def withdraw(subject: str) -> str:
    return f"{subject} no longer fails"
