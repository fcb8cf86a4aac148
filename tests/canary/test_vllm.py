"""Canaries of the real vLLM, on the CPU, drafting with DFlash."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.plan import Method, PlanMount
from tests.canary.asked import Desk, a_plan
from tests.models import hf
from tests.runtimes.vllm.running import SECRET, running
from tests.runtimes.vllm.test_launches import LAUNCHES, placed
from tests.runtimes.vllm.venv import ensure

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


async def test_it_is_measured_by_its_own_weights_and_drafts_nothing_for_that(desk: Desk, tmp_path: Path) -> None:
    models = tmp_path / "hf"
    hf.generate(models)
    request = placed(LAUNCHES["dflash"].request, models)
    with running(ensure(), request, tmp_path / "caches") as engine:
        plan = a_plan(
            models / hf.TARGET,
            method=Method.DFLASH,
            runtime="vllm",
            argv=engine.command.argv,
            mounts=(PlanMount(str(models), str(models)),),
            context=request.context,
        )
        await desk.look(plan, engine.socket, SECRET)
        first = desk.last()
        assert first.code == "canary_passed", first.text
        await desk.look(plan, engine.socket, SECRET)
        second = desk.last()
    assert second.evidence["leading"] == {"0": 32, "1": 12, "2": 12}
    assert second.evidence["nats"] == pytest.approx(second.evidence["nats_calibrated"], abs=0.05)
    print(f"{first.evidence['seconds']} s with the reference, {second.evidence['seconds']} s without")
    print(dict(first.evidence))
