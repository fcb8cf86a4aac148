"""What is kept of canaries, in the database of what this host has learned: references by weights, results by
combination, what is refuted. Losing it costs a calibration, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.canary.passages import VERSION
from orchestrator.canary.reference import Reference
from orchestrator.measured import Ran, Refuted
from orchestrator.measuring import ran as headings
from orchestrator.measuring.ledger import Ledger

KEPT = 20
"""Results kept of one combination and driver."""


@dataclass(frozen=True, slots=True)
class Result:
    """One canary. `whole`: with the long prompt and the pair, where the plan has room for them."""

    ran: Ran
    driver: str | None
    image: str
    plan: str
    engine: str
    passed: bool
    whole: bool
    reason: str
    at: float
    day: str


class Records:
    """The canaries' part of the database. No method raises for a database in trouble."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def reference(self, weights: str, needed: Sequence[str]) -> Reference | None:
        """What these weights say; None where it is not known yet."""
        rows = await self._ledger.rows(
            "SELECT body FROM canary_references WHERE weights = ? AND version = ?", (weights, VERSION)
        )
        return Reference.from_text(rows[0][0], needed) if rows and isinstance(rows[0][0], str) else None

    async def keep(self, weights: str, model: str, reference: Reference, at: float) -> None:
        """Remember what they say."""
        await self._ledger.put(
            "INSERT OR REPLACE INTO canary_references VALUES (?, ?, ?, ?, ?)",
            (weights, VERSION, model, reference.to_text(), at),
        )

    async def note(self, result: Result) -> None:
        """Remember how a canary went."""
        key = headings.to_text(result.ran)
        values = (key, result.driver, result.image, result.plan, result.engine)
        await self._ledger.put(
            "INSERT INTO canaries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*values, int(result.passed), int(result.whole), result.reason, result.at, result.day),
        )
        await self._ledger.put(
            "DELETE FROM canaries WHERE ran = ? AND driver IS ? AND rowid NOT IN"
            " (SELECT rowid FROM canaries WHERE ran = ? AND driver IS ? ORDER BY rowid DESC LIMIT ?)",
            (key, result.driver, key, result.driver, KEPT),
        )

    async def passed_whole(self, plan: str, image: str, driver: str | None) -> bool:
        """Whether this plan passed a whole canary with this image and driver."""
        query = "SELECT 1 FROM canaries WHERE plan = ? AND image = ? AND driver IS ? AND passed AND whole LIMIT 1"
        return bool(await self._ledger.rows(query, (plan, image, driver)))

    async def failing(self, ran: Ran, driver: str | None, image: str) -> tuple[str, ...]:
        """The engines of a combination that failed one after the other, with none that passed after them."""
        rows = await self._ledger.rows(
            "SELECT engine, passed FROM canaries WHERE ran = ? AND driver IS ? AND image = ? ORDER BY rowid DESC",
            (headings.to_text(ran), driver, image),
        )
        found: list[str] = []
        for engine, passed in rows:
            if passed:
                break
            found.append(str(engine))
        return tuple(dict.fromkeys(found))

    async def refute(self, ran: Ran, driver: str | None, refuted: Refuted, at: float) -> None:
        """From now on this combination is not planned."""
        key = headings.to_text(ran)
        await self._ledger.put("DELETE FROM refuted WHERE ran = ? AND driver IS ?", (key, driver))
        await self._ledger.put(
            "INSERT INTO refuted VALUES (?, ?, ?, ?, ?, ?)",
            (key, driver, refuted.text, refuted.source, refuted.seen, at),
        )
