"""Every row of plans.csv, planned: README.md says what the columns mean."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

import pytest

from orchestrator import catalogue, planner
from orchestrator.plan import Method, Planned
from tests.golden import rows

CATALOGUE = catalogue.shipped()
ROWS = rows.read()
MEMORY = frozenset({"too_big"})


def make(row: rows.Row, **more: str) -> Planned:
    """What the planner answers, with nothing fetched."""
    wish: Mapping[str, object] = {"parallel": row.concurrency, **row.wish, **more}
    return planner.plan(CATALOGUE.find(row.model), rows.facts(row.facts), CATALOGUE, {}, what_if=wish)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_what_the_sources_say_is_planned(row: rows.Row) -> None:
    planned = make(row)
    plan = planned.plan
    down = "; ".join(f"{r.runtime} {r.variant} {r.method} [{r.code}] {r.text}" for r in planned.rejected)
    if not row.planned:
        assert plan is None, f"{plan}"
        codes = {r.code for r in planned.rejected}
        assert ("too_big" in row.verdict and codes & MEMORY) or set(row.verdict) & (codes | {"no_plan"}), down
        return
    if plan is None and "refuted" in row.verdict:
        assert "refuted" in {r.code for r in planned.rejected}
        return
    assert plan is not None, down
    said = f"{plan.runtime} {plan.variant} {plan.method} {plan.draft_tokens} {plan.evidence}; turned down: {down}"
    assert plan.runtime in row.runtime, said
    assert plan.method in row.method, said
    assert plan.evidence in row.verdict, said
    assert plan.parallel == row.concurrency, said
    variant = next(v for v in CATALOGUE.find(row.model).variants if v.name == plan.variant)
    assert row.weights in ("", variant.format) or fnmatchcase(variant.name, row.weights), said
    if plan.method is not Method.NONE:
        assert row.draft is not None
        assert row.draft[0] <= plan.draft_tokens <= row.draft[1], said
