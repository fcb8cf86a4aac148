"""`python -m tests.endurance.stuck daemon`: an Outrider whose reconcile loop hangs while the file is there that
`STUCK_WHILE` names. No fault is known that does this to it: each of its waits has a deadline."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from orchestrator.reconciling import Reconciliation

VARIABLE = "STUCK_WHILE"


def hang(file: Path) -> None:
    """Have each round of this process hang while the file exists."""
    look = Reconciliation.look

    async def hanging(self: Reconciliation) -> None:
        while file.exists():  # noqa: ASYNC110 - nobody sets an event in this process
            await asyncio.sleep(0.05)
        await look(self)

    Reconciliation.look = hanging  # type: ignore[method-assign]


if __name__ == "__main__":
    hang(Path(os.environ[VARIABLE]))
    from api.cli.main import main

    sys.exit(main())
