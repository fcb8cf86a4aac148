"""The journal as it lies in the database, for whoever asks while no daemon runs. Read only; blocks for a moment."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

MOST = 20_000
"""Entries that are read, the newest."""
PATIENCE = 5.0
"""Seconds to wait for somebody who writes."""
_COLUMNS = ("sequence", "at", "host", "boot_id", "kind", "code", "text", "deployment", "evidence")


def journal(database: Path) -> Sequence[Mapping[str, Any]]:
    """The entries as the API gives them, oldest first. Raises OSError where the database cannot be read."""
    if not database.is_file():
        raise FileNotFoundError(2, "no database is there", str(database))
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, timeout=PATIENCE)) as connection:
            rows = connection.execute(
                f"SELECT {', '.join(_COLUMNS)} FROM journal ORDER BY sequence DESC LIMIT {MOST}"  # noqa: S608 - ours
            ).fetchall()
    except sqlite3.Error as error:
        raise OSError(f"{database}: {error}") from error
    found = [dict(zip(_COLUMNS, row, strict=True)) for row in reversed(rows)]
    return [{**entry, "evidence": json.loads(entry["evidence"] or "{}")} for entry in found]
