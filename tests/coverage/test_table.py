"""Every flag, key and word that an adapter can emit is backed by a launch, a parser or a rule."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from functools import cache

import pytest

from orchestrator.models import Runtime
from orchestrator.plan import Method
from orchestrator.runtimes import ADAPTERS, LaunchRequest
from orchestrator.settings import Settings
from tests.coverage import launches
from tests.coverage.elements import Element, elements, shape
from tests.coverage.evidence import How, backing, recorded


@cache
def _emitted(runtime: Runtime) -> dict[Method, frozenset[Element]]:
    found: dict[Method, set[Element]] = defaultdict(set)
    seen: set[tuple[Method, tuple[str, ...]]] = set()
    for request, argv in launches.lines(runtime):
        key = (request.method, shape(argv))
        if key not in seen:
            seen.add(key)
            found[request.method] |= elements(argv)
    return {method: frozenset(of) for method, of in found.items()}


def test_the_table() -> None:
    print()
    print(f"{'runtime':<12}{'method':<8}" + "".join(f"{how.name.lower():>10}" for how in reversed(How)))
    for runtime in ADAPTERS:
        behind = backing(runtime)
        for method, of in sorted(_emitted(runtime).items()):
            counts = Counter(behind.get(element, How.NONE) for element in of)
            print(f"{runtime:<12}{method:<8}" + "".join(f"{counts[how]:>10}" for how in reversed(How)))
    for runtime in ADAPTERS:
        bare = sorted(_bare(runtime))
        if bare:
            print(f"{runtime} on none:", ", ".join(str(element) for element in bare))


@pytest.mark.parametrize("runtime", sorted(ADAPTERS))
def test_nothing_that_is_emitted_stands_on_none(runtime: Runtime) -> None:
    assert not _bare(runtime)


def _bare(runtime: Runtime) -> set[Element]:
    behind = backing(runtime)
    return {element for of in _emitted(runtime).values() for element in of if element not in behind}


@pytest.mark.parametrize("runtime", sorted(ADAPTERS))
def test_every_method_is_emitted_and_every_flag_declared(runtime: Runtime) -> None:
    emitted = _emitted(runtime)
    assert emitted.keys() == ADAPTERS[runtime].methods
    flags = {element.flag.partition(".")[0] for of in emitted.values() for element in of}
    assert flags <= ADAPTERS[runtime].flags


def test_every_field_of_a_launch_has_an_axis() -> None:
    fields = {field.name for field in dataclasses.fields(LaunchRequest)}
    assert fields == {*launches.CORE, *launches.FIXED, *launches.SIDE, "settings"}
    assert set(Settings.model_fields) == set(launches.SETTINGS)


def test_a_record_accepts_nothing_that_it_refuses() -> None:
    for record in recorded():
        refused = {rejection.argv for rejection in record.rejected}
        assert not refused & set(record.accepted), record.test
