"""The file of measured constants says what each is, and a bad one is named."""

from __future__ import annotations

from importlib import resources

import pytest

from orchestrator.memory_fit import CALIBRATION
from orchestrator.memory_fit.calibration import read
from orchestrator.memory_fit.demand import llama_build, numbers, older

TEXT = resources.files("orchestrator.memory_fit").joinpath("calibration.toml").read_text("utf-8")


def test_the_shipped_file_is_whole() -> None:
    assert read(TEXT) == CALIBRATION
    assert CALIBRATION.vllm_context.mid == 0.25 * (1 << 30)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("[vllm_graphs]", "[vllm_grahps]", "vllm_grahps"),
        ("low = 0.09\n", "low = 9.0\n", "vllm_graphs is not low"),
        ('source = "the most seen', 'source = ""  # "the most seen', "vllm_graphs_most says no source"),
    ],
)
def test_a_wrong_file_is_named(old: str, new: str, says: str) -> None:
    assert old in TEXT
    with pytest.raises(ValueError, match=says):
        read(TEXT.replace(old, new, 1))


def test_versions() -> None:
    assert numbers("0.20.2rc1.dev9+g01d4d1ad3") == (0, 20, 2)
    assert llama_build("b10453 (3cb7ffb1a, CUDA Windows)") == 10453
    assert llama_build("11434.0.0") == 11434
    assert llama_build("62bf73d (CUDA)") is None
    assert llama_build("0.27.1") is None
    assert older("V0 engine (Dec 2024)", (0, 1))
    assert not older(None, (9, 9))
    assert not older("gemma4-unified image", (9, 9))
