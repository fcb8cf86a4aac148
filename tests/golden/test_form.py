"""That plans.csv says what it must say, in words that mean something."""

from __future__ import annotations

import pytest

from orchestrator.plan import Evidence, Method
from tests.golden import rows

ROWS = rows.read()
RUNTIMES = {"llama.cpp", "vllm", "sglang"}
WITHOUT = {"too_big", "no_plan"}


def test_there_are_enough_hosts_models_and_both_concurrencies() -> None:
    assert len(ROWS) >= 24
    assert len({row.id for row in ROWS}) == len(ROWS)
    assert {row.concurrency for row in ROWS} >= {1, 8}
    assert len({row.facts for row in ROWS}) >= 8
    assert len({row.model for row in ROWS}) >= 5
    assert {verdict for row in ROWS for verdict in row.verdict} == {*WITHOUT, *map(str, Evidence)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_a_row_is_well_formed(row: rows.Row) -> None:
    assert row.source
    assert rows.facts(row.facts).host == row.facts
    assert row.planned or not (row.method or row.weights or row.draft)
    assert not row.planned or (row.method and not WITHOUT & set(row.verdict))
    assert row.planned or set(row.verdict) <= {*WITHOUT, "refuted"}
    assert set(row.runtime) <= RUNTIMES
    drafting = {Method(method) for method in row.method} - {Method.NONE}
    assert bool(drafting) == (row.draft is not None)
    assert row.draft is None or 1 <= row.draft[0] <= row.draft[1] <= 16
