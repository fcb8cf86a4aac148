"""A pause that somebody has forgotten: a model that fails meanwhile stays down."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.issue_rules._sight import HOST, Found, Sight

CODE = "paused_long"
LONG = 24 * 3600.0
"""Seconds. Whoever pauses for maintenance is done by then."""


def detect(sight: Sight) -> Iterator[Found]:
    for pause in sight.pauses:
        lasted = sight.at - pause.at
        if lasted < LONG:
            continue
        name, hours = pause.deployment, lasted / 3600
        yield Found(
            name or HOST,
            f"{pause.author} paused {name or 'everything'} {hours:.0f} h ago: nothing that fails comes back",
            f"`outrider resume{f' {name}' if name else ''}` lets Outrider act again",
            {"paused_for_s": round(lasted), "paused_for_s_limit": LONG, "author": pause.author},
            name,
        )


def withdraw(subject: str) -> str:
    return "Outrider may act by itself again" if subject == HOST else f"Outrider may act on {subject} again"
