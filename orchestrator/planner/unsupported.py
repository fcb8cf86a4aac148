"""A wish for a runtime that Outrider does not run: turned down with what it is, why not, and what to take. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.catalogue.types import Catalogue
from orchestrator.models import ModelEntry
from orchestrator.plan import Method, Planned, Rejected

CODE = "runtime_unsupported"


def turned_down(entry: ModelEntry, catalogue: Catalogue, what_if: object) -> Planned | None:
    """The answer to such a wish; None where none is asked for."""
    asked: Any = what_if.get("runtime") if isinstance(what_if, Mapping) else None
    known = catalogue.unsupported(asked) if isinstance(asked, str) else None
    if known is None:
        return None
    text = f"{known.name} is {known.what}. Outrider does not run it: {known.why}. Instead: {known.instead}"
    variants = [v.name for v in entry.variants]
    wanted = what_if.get("variant") if isinstance(what_if, Mapping) else None
    variant = wanted if wanted in variants else variants[0]
    return Planned(None, (), (Rejected(known.name, variant, Method.NONE, CODE, text, source=known.source),))
