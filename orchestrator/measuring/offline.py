"""What this host has learned, read by a command that needs no daemon. Nothing is written, and nothing made."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from hosts.facts import HostFacts
from orchestrator.measured import NOTHING, Measured
from orchestrator.measuring import learned
from orchestrator.measuring import ran as headings
from orchestrator.measuring.ledger import DECODINGS, REFUTED, STARTS, decoding_of, refutation_of, start_of

WAIT = 2.0
"""Seconds for a daemon that writes at the moment."""


def measured(path: Path, facts: HostFacts) -> tuple[Measured, str | None]:
    """What is known, and why nothing is although there is a database (it may not be read, or is damaged)."""
    try:
        if not path.exists():
            return NOTHING, None
        # of a database that nobody has open there is no journal, and SQLite would make one to read it
        alone = not path.with_name(f"{path.name}-wal").exists()
        how = "mode=ro&immutable=1" if alone else "mode=ro"
        with closing(sqlite3.connect(f"file:{quote(str(path))}?{how}", uri=True, timeout=WAIT)) as db:
            starts = [found.start for row in db.execute(STARTS) if (found := start_of(row)) is not None]
            decodings = [d for row in db.execute(DECODINGS) if (d := decoding_of(row)) is not None]
            known = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'refuted'").fetchall()  # not to older versions
            refutations = [r for row in db.execute(REFUTED) if (r := refutation_of(row))] if known else []
    except (sqlite3.Error, OSError, ValueError, TypeError) as error:
        return NOTHING, f"{path} cannot be read ({error})"
    return learned.measured(starts, decodings, headings.drivers(facts), refutations), None
