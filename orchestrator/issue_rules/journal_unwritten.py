"""The journal cannot be written (a full disk): decisions go on, and what was decided is kept in memory alone."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.issue_rules._sight import HOST, Found, Sight
from orchestrator.telling.amounts import count

CODE = "journal_unwritten"


def detect(sight: Sight) -> Iterator[Found]:
    if sight.unwritten:
        yield Found(
            HOST,
            f"{count(sight.unwritten, 'entry', 'entries')} of the journal could not be written, and wait in memory",
            "`df` shows what is full; `outrider prune` removes what nothing needs",
            {"unwritten": sight.unwritten},
        )


def withdraw(subject: str) -> str:
    return "the journal is written again, with what had waited"
