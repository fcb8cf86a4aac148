"""Podman does not answer: engines run on, and nothing can be started or stopped."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.issue_rules._sight import HOST, Found, Sight

CODE = "podman_away"


def detect(sight: Sight) -> Iterator[Found]:
    if sight.health.podman is False:
        yield Found(
            HOST,
            "Podman does not answer: what runs goes on, and nothing can be started or stopped",
            "`systemctl status podman.socket`, then `outrider doctor`",
        )


def withdraw(subject: str) -> str:
    return "Podman answers again"
