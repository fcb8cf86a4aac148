"""What runs is not what the configuration, the image or the measurements ask for now. Nothing restarts for that."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.issue_rules._sight import Found, Sight

CODE = "drifted"


def detect(sight: Sight) -> Iterator[Found]:
    for view in sight.wanted():
        if view.drifted:
            name = view.deployment
            yield Found(
                name,
                f"{name} runs on a plan that would be another one today; it goes on serving as it is",
                f"`outrider plan {name}` shows the new one, `outrider apply {name}` moves to it",
                deployment=name,
            )


def withdraw(subject: str) -> str:
    return f"{subject} runs on the plan that would be made today"
