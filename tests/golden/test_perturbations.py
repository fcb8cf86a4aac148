"""What happens to each plan when the world changes a little: it changes for that reason, or says that it need not."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache

import pytest

from hosts.facts import HostFacts
from orchestrator import catalogue, planner
from orchestrator.catalogue import Catalogue
from orchestrator.file_facts import FileProblem, Files, location
from orchestrator.models import ModelEntry, Runtime
from orchestrator.plan import Method, Plan, Planned
from tests.golden import rows

GIB = 1 << 30
CATALOGUE = catalogue.shipped()
KNOWN = {entry.name for entry in CATALOGUE.models}
ROWS = [row for row in rows.read() if row.planned and row.model in KNOWN]
TOO_LONG = {"too_big", "context_too_long", "context_limit"}


def ask(
    row: rows.Row,
    *,
    entry: ModelEntry | None = None,
    facts: HostFacts | None = None,
    known: Catalogue = CATALOGUE,
    files: Files | None = None,
    **more: object,
) -> Planned:
    wish = {"parallel": row.concurrency, **row.wish, **more}
    model = CATALOGUE.find(row.model) if entry is None else entry
    return planner.plan(model, facts or rows.facts(row.facts), known, files or {}, what_if=wish)


@cache
def _plans() -> Mapping[str, Plan]:
    """What each row is planned as, by its id."""
    return {row.id: plan for row in ROWS if (plan := ask(row).plan) is not None}


def planned(row: rows.Row) -> Plan:
    return _plans()[row.id]


def cramped(row: rows.Row) -> Planned:
    """The same with 4 GiB less."""
    return ask(row, facts=less_memory(rows.facts(row.facts), 4 * GIB))


def combination(plan: Plan) -> tuple[str, str, Method, str | None]:
    return plan.runtime, plan.variant, plan.method, plan.drafter


def down(found: Planned, plan: Plan) -> Iterator[str]:
    """The codes with which what a plan launched is turned down now."""
    for r in found.rejected:
        if (r.runtime, r.variant, r.method, r.drafter) == combination(plan):
            yield r.code


def kept(found: Planned, plan: Plan) -> bool:
    """Whether the same combination can still be launched, at some size."""
    return any(combination(p) == combination(plan) for p in (found.plan, *found.alternatives) if p is not None)


def less_memory(facts: HostFacts, count: int) -> HostFacts:
    gpus = tuple(
        replace(a, memory_free=max(0, (a.memory_free or a.memory_total or 0) - count)) for a in facts.accelerators
    )
    memory = replace(facts.memory, available=max(0, facts.memory.available - count))
    return replace(facts, memory=memory, accelerators=gpus)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_four_gib_less_memory(row: rows.Row) -> None:
    plan, found = planned(row), cramped(row)
    needs, budget = plan.expected_memory.total, plan.expected_memory.budget
    assert budget is not None
    if needs <= budget - 4 * GIB:
        assert found.plan is not None
        assert found.plan.digest == plan.digest, "what still fits stays"
        return
    assert found.plan is None or found.plan.digest != plan.digest
    if found.plan is not None and found.plan.expected_memory.devices == plan.expected_memory.devices:
        assert found.plan.expected_memory.budget == budget - 4 * GIB
    if kept(found, plan):
        same = next(
            p for p in (found.plan, *found.alternatives) if p is not None and combination(p) == combination(plan)
        )
        more_devices = len(same.devices) > len(plan.devices)
        assert same.context <= plan.context or more_devices
        assert same.expected_memory.total <= budget - 4 * GIB
    else:
        assert "too_big" in set(down(found, plan))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_four_times_the_context(row: rows.Row) -> None:
    plan = planned(row)
    found = ask(row, context=4 * plan.context)
    if found.plan is not None and combination(found.plan) == combination(plan):
        assert found.plan.context == 4 * plan.context
        more = found.plan.expected_memory.kv * max(len(found.plan.devices), 1)
        assert more > plan.expected_memory.kv
        return
    codes = set(down(found, plan))
    assert codes & TOO_LONG or kept(found, plan)
    if "too_big" in codes:
        texts = [r.text for r in found.rejected if r.code == "too_big" and r.variant == plan.variant]
        assert any("bytes) of" in text and "; " in text for text in texts)


def older(known: Catalogue, version: str | None = None) -> Catalogue:
    """The catalogue with each image's version one minor older: of llama.cpp one build."""
    images = tuple(
        image if image.version is None else image.model_copy(update={"version": version or before(image.version)})
        for image in known.images
    )
    return known.model_copy(update={"images": images})


def before(version: str) -> str:
    if version.startswith("b"):
        return f"b{int(version[1:]) - 1}"
    major, minor, *_ = version.split(".")
    return f"{major}.{int(minor) - 1}.0"


VERSIONED = [row for row in ROWS if planned(row).runtime_version is not None]


@pytest.mark.parametrize("row", VERSIONED, ids=lambda row: row.id)
def test_one_minor_version_older(row: rows.Row) -> None:
    """What is known of the older version and not of this one is told, and decides."""
    plan = planned(row)
    found = ask(row, known=older(CATALOGUE))
    ids = {r.id for r in CATALOGUE.restrictions}
    before = {r.code for r in plan.reasons} & ids
    if found.plan is not None and combination(found.plan) == combination(plan):
        assert found.plan.runtime_version != plan.runtime_version
        gone = before - {r.code for r in found.plan.reasons}
        assert not any(r.versions and "<" in r.versions for r in CATALOGUE.restrictions if r.id in gone)
        return
    assert set(down(found, plan)) or kept(found, plan)


def test_a_version_without_the_drafters_loader_drafts_otherwise() -> None:
    row = next(row for row in ROWS if row.id == "3090-38-c1")
    assert planned(row).method is Method.DFLASH
    found = ask(row, known=older(CATALOGUE, "0.27.1"), runtime=Runtime.VLLM.value)
    assert found.plan is not None
    assert found.plan.method is Method.MTP
    assert "vllm-dflash2-stock" in {r.code for r in found.rejected if r.method is Method.DFLASH}


DRAFTED = [row for row in ROWS if planned(row).drafter is not None]


@pytest.mark.parametrize("row", DRAFTED, ids=lambda row: row.id)
def test_a_drafter_that_is_missing(row: rows.Row) -> None:
    plan, entry = planned(row), CATALOGUE.find(row.model)
    drafter = next(d for d in entry.drafters if d.name == plan.drafter)
    place = location(drafter)
    files = {place: FileProblem(place, f"{drafter.name} is not there")}
    found = ask(row, files=files)
    assert found.plan is None or found.plan.drafter != plan.drafter
    assert {r.code for r in found.rejected if r.drafter == plan.drafter} == {"drafter_file"}
    if found.plan is not None:
        assert any(r.code == "turned_down" and "is not there" in r.text for r in found.plan.reasons)


HEADED = [row for row in ROWS if planned(row).method is Method.MTP and "method" not in row.wish]


@pytest.mark.parametrize("row", HEADED, ids=lambda row: row.id)
def test_a_head_that_is_missing(row: rows.Row) -> None:
    entry = CATALOGUE.find(row.model)
    headless = tuple(
        v.model_copy(update={"shape": None if v.shape is None else v.shape.model_copy(update={"mtp_layers": 0})})
        for v in entry.variants
    )
    found = ask(row, entry=entry.model_copy(update={"variants": headless}))
    assert found.plan is not None
    assert found.plan.method is not Method.MTP
    asked = ask(row, entry=entry.model_copy(update={"variants": headless}), method="mtp")
    assert asked.plan is None
    assert "no_mtp_head" in {r.code for r in asked.rejected}


def test_each_of_them_moves_some_plans() -> None:
    """None of the tests above is about nothing."""
    assert len(VERSIONED) >= 8
    assert len(DRAFTED) >= 5
    assert len(HEADED) >= 3
    moved = (row for row in ROWS if cramped(row).plan != planned(row))
    assert len([*itertools.islice(moved, 8)]) == 8
