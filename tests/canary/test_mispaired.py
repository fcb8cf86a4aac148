"""Drafters that do not belong to the model, in real Podman: each silent failure is found before it serves, and named.

Plans that the planner would never make, so what it planned is changed behind its back (`tests.stack.bench`). Drafters
of another vocabulary, kind or width are in `tests/stack/test_proof.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import EngineFailed
from orchestrator.plan import Method, Plan
from tests.models import generate as g
from tests.stack.bench import Bench, filled_store, opened

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]


@pytest.fixture(scope="module")
def store(test_models: Path) -> Iterator[Path]:
    with filled_store(test_models) as state:
        yield state


@pytest.fixture
async def bench(podman_socket: str, embedded_image: str, store: Path) -> AsyncIterator[Bench]:
    async with opened(store, podman_socket) as bench:
        yield bench


def without(plan: Plan, *flags: str) -> Plan:
    """The plan without these flags and their values."""
    words = list(plan.argv)
    for flag in flags:
        at = words.index(flag)
        del words[at : at + 2]
    return replace(plan, argv=tuple(words))


async def named(bench: Bench, plan: Plan, code: str, name: str) -> None:
    with pytest.raises(EngineFailed) as caught:
        await bench.bring_up(plan)
    error = caught.value
    assert (error.code, error.evidence["cause"]) == (code, name)
    print(f"{name}: {error.detail}")


async def test_dflash_without_its_drafter(bench: Bench) -> None:
    plan = without(await bench.plan(Method.DFLASH, g.DFLASH), "-md")
    await named(bench, plan, "speculation_off", "drafter_not_given")


async def test_a_drafter_without_the_method(bench: Bench) -> None:
    plan = without(await bench.plan(Method.DRAFT, g.DRAFT), "--spec-type")
    await named(bench, plan, "speculation_off", "method_not_said")


async def test_mtp_without_the_method(bench: Bench) -> None:
    plan = without(await bench.plan(Method.MTP, target=g.TARGET_MTP), "--spec-type", "--spec-draft-n-max")
    await named(bench, plan, "speculation_off", "method_not_said")
