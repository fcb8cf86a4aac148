"""A deployment that should run, and that nobody but a person can get going again."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.issue_rules._sight import Found, Sight

CODE = "parked"


def detect(sight: Sight) -> Iterator[Found]:
    for view in sight.down():
        if (
            view.deployment not in sight.parked
            or view.reason is None
            or ("keeps_failing", view.deployment) in sight.open
        ):
            continue  # the ladder says so itself where it was an engine that failed
        name = view.deployment
        text = view.reason.text.removeprefix(f"{name}: ")
        hint = view.reason.hint or f"`outrider why {name}` tells the story"
        evidence = {"code": view.reason.code, "failures": sight.failures.get(name)}
        yield Found(name, f"{name} is not tried again by itself: {text}", hint, evidence, name)


def withdraw(subject: str) -> str:
    return f"{subject} is tried again, serves, or is no longer wanted"
