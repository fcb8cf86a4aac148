"""An MTP head in a file of its own (`mtp-*.gguf`), as llama.cpp takes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import catalogue, planner
from orchestrator.model_files import FileReader
from orchestrator.models import Drafter, Format, ModelEntry, Variant
from orchestrator.plan import Method, Planned
from tests.models import generate as models
from tests.planner.hosts import cpu_host

CATALOGUE = catalogue.shipped()


def planned(folder: Path, target: str, head: str) -> Planned:
    models.generate(folder, [target, head])
    entry = ModelEntry(
        name="tiny",
        variants=(Variant(name="f32", format=Format.GGUF, quantisation="F32", path=str(folder / target)),),
        drafters=(Drafter(name="head", method=Method.MTP, format=Format.GGUF, path=str(folder / head)),),
    )
    files = FileReader().inspect(entry, Path("/nowhere"))
    return planner.plan(entry, cpu_host(available=8 << 30), CATALOGUE, files)


def test_it_is_planned_as_the_models_own_head_would_be(tmp_path: Path) -> None:
    plan = planned(tmp_path, models.TARGET_HEADLESS, models.MTP_SIDECAR).plan
    assert plan is not None
    assert (plan.method, plan.drafter) == (Method.MTP, "head")
    assert f"--spec-type draft-mtp -md /models/drafter/{models.MTP_SIDECAR}" in " ".join(plan.argv)
    assert plan.expected_memory.drafter > 0


def test_a_whole_model_is_no_head(tmp_path: Path) -> None:
    found = planned(tmp_path, models.TARGET_HEADLESS, models.DRAFT)
    assert found.plan is not None
    assert found.plan.method is Method.NONE
    assert [r.code for r in found.rejected if r.method is Method.MTP] == ["drafter_kind"]


def test_safetensors_have_no_head_of_their_own() -> None:
    with pytest.raises(ValueError, match="is a GGUF file"):
        Drafter(name="head", method=Method.MTP, format=Format.SAFETENSORS, repository="a/b")
