"""Runs the issue rules, round by round: opens what they find, and closes what they no longer find."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from orchestrator import issue_rules
from orchestrator.issue_rules._sight import Sight
from orchestrator.issues import Issues

log = structlog.get_logger("issues")


class IssueWatch:
    """The issues that rules find. Others' are left alone."""

    def __init__(self, issues: Issues, look: Callable[[], Awaitable[Sight]]) -> None:
        self._issues = issues
        self._sight = look
        self._mine: dict[tuple[str, str], str | None] = {}
        """Code and subject of what a rule has opened, with the deployment it is about."""

    async def look(self) -> None:
        """One round. A rule that fails keeps its issues as they are and no other rule from its work."""
        sight = await self._sight()
        for rule in await asyncio.to_thread(issue_rules.load):  # files are read, the first time
            try:
                found = {(rule.code, one.subject): one for one in rule.detect(sight)}
            except Exception:
                log.exception("issue_rule_crashed", rule=rule.code)
                continue
            for key, one in found.items():
                if key not in self._mine and self._issues.holds(*key):
                    continue  # somebody who watches this more closely said so already
                self._mine[key] = one.deployment
                self._issues.open(*key, one.text, hint=one.hint, evidence=one.evidence, deployment=one.deployment)
            for key in [key for key in self._mine if key[0] == rule.code and key not in found]:
                deployment = self._mine.pop(key)
                self._issues.close(*key, rule.withdraw(key[1]), deployment=deployment)
