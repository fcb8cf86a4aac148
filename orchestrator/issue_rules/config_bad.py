"""A configuration file that is wrong: the old one stays in force, also over days."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.issue_rules._sight import HOST, Found, Sight

CODE = "config_bad"


def detect(sight: Sight) -> Iterator[Found]:
    for why in sight.health.problems:
        if why.code == "config_invalid":
            yield Found(
                HOST,
                f"the configuration cannot be taken up, the former one is in force: {why.text}",
                why.hint or "`outrider config check` shows every error with file and key",
            )
            return


def withdraw(subject: str) -> str:
    return "the configuration is in force as it is written"
