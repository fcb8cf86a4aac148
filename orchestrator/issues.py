"""Issues: what a person should look at, for as long as it holds.

An event says that something happened, an issue that something *is*. Whoever finds one opens it,
and closes it when it holds no longer; both are in the journal once. Issues are not stored: a new
daemon finds again what still holds.
"""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.clock import Clock
from orchestrator.events import Journal
from orchestrator.views import Issue

HOST = "host"
"""The subject of issues about the machine."""


class Issues:
    """The open issues of one host, by code and subject."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self._open: dict[tuple[str, str], Issue] = {}

    def open(
        self,
        code: str,
        subject: str,
        text: str,
        *,
        hint: str | None = None,
        evidence: Mapping[str, object] | None = None,
        deployment: str | None = None,
    ) -> Issue:
        """Open an issue, or refresh the text and numbers of one that is open; only the first is an event."""
        key = (code, subject)
        before = self._open.get(key)
        since = self._clock.wall() if before is None else before.since
        issue = Issue(code, subject, text, hint, since, dict(evidence or {}), deployment)
        self._open[key] = issue
        if before is None:
            evidence = {"subject": subject, "hint": hint, **issue.evidence}
            self._journal.emit("issue", code, text, deployment=deployment, evidence=evidence)
        return issue

    def close(self, code: str, subject: str, text: str | None = None, *, deployment: str | None = None) -> bool:
        """Close an issue; False when it was not open. `text` says why it no longer holds."""
        issue = self._open.pop((code, subject), None)
        if issue is None:
            return False
        self._journal.emit(
            "issue",
            f"{code}_over",
            text or f"no longer: {issue.text}",
            deployment=deployment,
            evidence={"subject": subject, "seconds": round(self._clock.wall() - issue.since, 3)},
        )
        return True

    def holds(self, code: str, subject: str | None = None) -> bool:
        """Whether an issue of this code is open, about this subject if one is given."""
        return any(c == code and subject in (None, s) for c, s in self._open)

    def list(self) -> tuple[Issue, ...]:
        """The open issues, oldest first."""
        return tuple(sorted(self._open.values(), key=lambda issue: issue.since))
