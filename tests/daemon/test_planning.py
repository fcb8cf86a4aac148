"""Planning on a host: what the daemon adds to the pure planner."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from containers.podman import Podman
from orchestrator import catalogue, profiles
from orchestrator.admission import Admission
from orchestrator.clock import SystemClock
from orchestrator.config import Config
from orchestrator.errors import DeviceMissing, DiskError, NotFound, WeightsMissing
from orchestrator.model_files import FileReader, check_mounted
from orchestrator.paths import find
from orchestrator.plan import Evidence, Method, PlanMount
from orchestrator.planning import Planning
from tests.daemon.world import a_plan

MODEL = "ling-3.0-flash"


class Dated(SystemClock):
    """A clock on a day of the test's."""

    day = dt.date(2026, 12, 1)

    def today(self) -> dt.date:
        return self.day


@pytest.fixture
async def planning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Planning, Dated]]:
    """On an APU of 128 GB whose proofs end with the year; Podman is never asked."""
    shipped = catalogue.shipped()
    ends = {"expires": dt.date(2026, 12, 31)}
    aged = tuple(c.model_copy(update=ends) if c.evidence is Evidence.PROVEN else c for c in shipped.combinations)
    monkeypatch.setattr(catalogue, "shipped", lambda: shipped.model_copy(update={"combinations": aged}))
    facts, clock = profiles.load("dankclaw"), Dated()
    podman = Podman(tmp_path / "none.sock")
    paths = find(state_dir=tmp_path)
    yield Planning(paths, Config(), Admission(lambda: facts), podman, clock), clock
    await podman.close()


async def test_a_proof_ends_on_its_day(planning: tuple[Planning, Dated]) -> None:
    here, clock = planning
    for clock.day, evidence in ((dt.date(2026, 12, 31), Evidence.PROVEN), (dt.date(2027, 1, 1), Evidence.UNTRIED)):
        found = await here.planned(here.find(MODEL))
        plans = [p for p in (found.plan, *found.alternatives) if p is not None]
        assert {p.evidence for p in plans if p.method is Method.MTP and p.runtime == "vllm"} == {evidence}


async def test_a_plan_without_its_weights_is_not_for_launching(planning: tuple[Planning, Dated]) -> None:
    here, _ = planning
    with pytest.raises(WeightsMissing) as raised:
        await here.plan(here.find(MODEL))
    assert "not on this host: `outrider model pull ling-3.0-flash` fetches" in raised.value.detail
    assert "outrider start ling-3.0-flash --pull" in (raised.value.hint or "")


def test_a_plan_whose_files_went_is_not_started(tmp_path: Path) -> None:
    """What was there when it was made may have been removed since, or its disk not be mounted yet."""
    folder = tmp_path / "weights"
    plan = replace(a_plan(argv=("-m", "/models/target/a.gguf")), mounts=(PlanMount(str(folder), "/models/target"),))
    for make in (folder.mkdir, (folder / "a.gguf").touch):
        with pytest.raises(WeightsMissing, match="is not there any more") as raised:
            check_mounted(plan)
        assert f"`outrider start {plan.model} --pull`" in (raised.value.hint or "")
        assert raised.value.retryable
        make()
    check_mounted(plan)


async def test_an_alias_is_a_name_and_a_typo_is_not(planning: tuple[Planning, Dated]) -> None:
    here, _ = planning
    assert here.find("inclusionAI/Ling-3.0-flash").name == MODEL
    with pytest.raises(NotFound, match="no model 'ling-3'"):
        here.find("ling-3")


async def test_a_model_is_on_the_cpu_when_its_image_or_the_hosts_is(planning: tuple[Planning, Dated]) -> None:
    here, _ = planning
    entry = here.find(MODEL)
    assert not here.on_cpu(entry)
    here.configure(Config.model_validate({"defaults": {"image": "embedded-cpu"}}))
    assert here.on_cpu(entry)
    assert not here.on_cpu(entry.model_copy(update={"image": "vllm-rocm"})), "its own word counts more"


async def test_a_gpu_without_a_name_is_waited_for_and_its_weights_may_come_meanwhile(tmp_path: Path) -> None:
    shown = profiles.load("dankserver")
    facts = replace(shown, accelerators=(replace(shown.accelerators[0], devices=()),))
    podman = Podman(tmp_path / "none.sock")
    here = Planning(find(state_dir=tmp_path), Config(), Admission(lambda: facts), podman, SystemClock())
    entry = here.find("qwen3.8-27b")
    with pytest.raises(DeviceMissing) as raised:
        await here.plan(entry)
    assert "no container can be given" in raised.value.detail
    assert "outrider doctor" in (raised.value.hint or "")
    wished = (await here.wished(entry)).plan
    assert wished is not None
    assert wished.variant == "w4a16"
    await podman.close()


async def test_a_disk_that_does_not_answer_holds_nobody_up(
    planning: tuple[Planning, Dated], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a file server that is away: the reconcile loop asks this too, and its watchdog waits."""
    here, _ = planning
    answers = threading.Event()
    monkeypatch.setattr(FileReader, "inspect", lambda *_: answers.wait(30) and {})
    monkeypatch.setattr("orchestrator.planning.FILES_DEADLINE", 0.1)
    try:
        for again in ("no answer within", "an earlier call still hangs"):
            with pytest.raises(DiskError, match=again) as raised:
                await here.plan(here.find(MODEL))
            assert raised.value.retryable
        shown = {model.name: model for model in await here.models()}
        assert "cannot be looked at" in str(shown[MODEL].problem)
        assert not shown[MODEL].files_ok
    finally:
        answers.set()
