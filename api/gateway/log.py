"""The gateway's log: one JSON object a line on standard error, for notable events only (never per request)."""

from __future__ import annotations

import json
import logging
import sys
from typing import TextIO

from orchestrator.log_file import LogFile

_ROOT = "outrider.gateway"


class _Lines(logging.Formatter):
    """`{"at", "level", "event", ...fields}`; other libraries' records get `event` = "log"."""

    def format(self, record: logging.LogRecord) -> str:
        fields: object = getattr(record, "fields", None)
        line: dict[str, object] = {"at": round(record.created, 3), "level": record.levelname.lower()}
        if isinstance(fields, dict):
            line["event"] = record.getMessage()
            line.update(fields)
        else:
            line["event"] = "log"
            line["logger"] = record.name
            line["text"] = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def setup(stream: TextIO | LogFile | None = None) -> None:
    """Send this process's log records to `stream` (standard error) as JSON lines."""
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(_Lines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def event(name: str, /, level: int = logging.INFO, **fields: object) -> None:
    """Log one event. Fields are small and never hold secrets or what clients wrote."""
    logging.getLogger(_ROOT).log(level, name, extra={"fields": fields})


def warning(name: str, /, **fields: object) -> None:
    """`event` at level warning."""
    event(name, logging.WARNING, **fields)
