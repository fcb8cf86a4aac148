"""The crash ledger: what is remembered of failures, so that neither a new daemon nor a reboot begins at the top again.

Where deployments stand is read once when the daemon starts and written after each change; every failure is a row, for
people. Without a database it is remembered in memory alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import structlog

from orchestrator.restarting.rule import after_boot
from orchestrator.restarting.standing import Standing
from orchestrator.store import Store

log = structlog.get_logger("ladder")


@dataclass(frozen=True, slots=True)
class Row:
    """One failure. `at` is Unix seconds, `ran_for` how long the engine had served, `action` what was decided."""

    deployment: str
    at: float
    boot: str
    generation: int | None
    plan: str | None
    rung: str
    code: str
    fault: str
    ran_for: float
    action: str
    text: str


class Ledger:
    """One a host."""

    def __init__(self, store: Store | None = None, boot: str = "") -> None:
        self._store = store
        self.boot = boot
        self._known: dict[str, Standing] = {}

    @classmethod
    async def open(cls, store: Store, boot: str) -> Ledger:
        """The ledger of this database."""
        ledger = cls(store, boot)
        for deployment, text in await store.standings():
            try:
                ledger._known[deployment] = after_boot(Standing.from_dict(json.loads(text)), boot)
            except ValueError:  # written by another version: as if it had never failed
                log.warning("standing_unreadable", deployment=deployment)
        return ledger

    def of(self, deployment: str) -> Standing:
        """Where this deployment stands."""
        return self._known.get(deployment, Standing())

    async def keep(self, deployment: str, standing: Standing, rows: list[Row], at: float) -> None:
        """Remember it for the next daemon. Rows that were written are taken out of `rows`. Raises `DatabaseFailed`."""
        self._known[deployment] = standing
        if self._store is None:
            rows.clear()
            return
        if standing == Standing():
            await self._store.forget_standing(deployment)
        else:
            await self._store.keep_standing(deployment, json.dumps(standing.to_dict()), at)
        while rows:
            row = rows[0]
            await self._store.add_crash(
                (
                    row.deployment,
                    row.at,
                    row.boot,
                    row.generation,
                    row.plan,
                    row.rung,
                    row.code,
                    row.fault,
                    row.ran_for,
                    row.action,
                    row.text,
                )
            )
            del rows[0]
