"""What a person is shown of a model's files: quantisation, context, heads, and who belongs to whom."""

from __future__ import annotations

from pathlib import Path

from orchestrator.model_files import FileReader
from orchestrator.models import ModelEntry
from orchestrator.weights.shown import shown
from orchestrator.weights.verifying import verify
from tests.models import generate as g
from tests.reading import folders


def test_drafters_that_pair_and_one_that_does_not(test_models: Path) -> None:
    def drafter(name: str, file: str) -> dict[str, object]:
        return {"name": name, "method": "dflash", "format": "gguf", "path": str(test_models / file)}

    entry = ModelEntry.model_validate(
        {
            "name": "m",
            "variants": [{"name": "f32", "format": "gguf", "quantisation": "F32", "path": str(test_models / g.TARGET)}],
            "drafters": [drafter("good", g.DFLASH), drafter("wide", g.DFLASH_WIDE)],
        }
    )
    files = FileReader().inspect(entry, test_models)
    target, good, wide = (view.facts for view in shown(entry, test_models, files))
    assert target is not None
    assert (target.architecture, target.quantisation, target.mtp_head, target.layers) == ("qwen3", "F32", "none", 4)
    assert good is not None
    assert (good.method, good.draft_tokens, good.pairs) == ("dflash", 7, {"f32": None})
    assert wide is not None
    assert "was made for width" in str(wide.pairs["f32"])


def test_a_folder_and_its_verification(tmp_path: Path) -> None:
    path = folders.model(tmp_path / "m", folders.small(num_nextn_predict_layers=1), folders.plain())
    variant = {"name": "v", "format": "safetensors", "quantisation": "BF16", "path": str(path)}
    entry = ModelEntry.model_validate({"name": "m", "variants": [variant]})
    (view,) = shown(entry, tmp_path, FileReader().inspect(entry, tmp_path))
    assert view.facts is not None
    assert (view.facts.quantisation, view.facts.context, view.facts.mtp_head) == ("BF16", 4096, "missing")
    (checked,) = verify(entry, tmp_path, 0.0, lambda _: None)
    assert (checked.ok, checked.detail) == (None, "whole by its header; no digest was recorded")
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    (checked,) = verify(entry, tmp_path, 0.0, lambda _: None)
    assert checked.ok is False
    assert "truncated" in checked.detail
