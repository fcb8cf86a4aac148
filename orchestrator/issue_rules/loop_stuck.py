"""A part of the daemon that has shown no life for longer than it may."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.issue_rules._sight import HOST, Found, Sight

CODE = "loop_stuck"


def detect(sight: Sight) -> Iterator[Found]:
    if sight.stuck:
        ages = {name: sight.health.loops.get(name) for name in sight.stuck}
        yield Found(
            HOST,
            f"a part of the daemon has shown no life for too long: {', '.join(sight.stuck)}",
            "engines go on whatever becomes of the daemon: `systemctl restart outrider.service` is safe",
            {f"{name}_s": age for name, age in ages.items()},
        )


def withdraw(subject: str) -> str:
    return "every part of the daemon goes round again"
