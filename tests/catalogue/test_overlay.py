"""The owner's files over what ships: what they add, replace and drop, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import catalogue, config
from orchestrator.catalogue.reading import laid_over, read
from orchestrator.config import ConfigProblems
from orchestrator.config_problems import Problem
from orchestrator.paths import Paths

SHIPPED = catalogue.shipped()
SLOTS = "restriction[vllm-dflash-slots]"
IMAGE = """
[[image]]
name = "mine"
reference = "localhost/mine:1"
runtime = "vllm"
backend = "cuda"
vendor = "nvidia"
source = "built here"
"""
MODEL = """
[[model]]
name = "own"
[[model.variants]]
name = "q8"
format = "gguf"
quantisation = "Q8_0"
path = "/srv/own.gguf"
"""
RESTRICTION = """
[[restriction]]
id = "vllm-dflash-slots"
runtime = "vllm"
effect = "limit"
methods = ["dflash"]
limits = { parallel = 16 }
text = "fine here up to 16"
source = "measured here"
date = 2026-11-30
"""


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    made = Paths(tmp_path / "config", tmp_path / "state", tmp_path / "run")
    made.catalog_d.mkdir(parents=True)
    return made


def test_it_adds_replaces_and_drops_with_origins(paths: Paths) -> None:
    file = paths.catalog_d / "own.toml"
    drop = (
        "[[restriction]]\nid = 'vllm-gfx1151-gptq'\ndisabled = true\n[[image]]\nname = 'vllm-rdna4'\ndisabled = true\n"
    )
    file.write_text(IMAGE + MODEL + RESTRICTION + drop)
    found = config.load(paths).laid_over(SHIPPED)
    limits = {r.id: r.limits for r in found.restrictions}
    assert limits["vllm-dflash-slots"].parallel == 16
    assert "vllm-gfx1151-gptq" not in limits
    assert [r.id for r in found.restrictions] == [r.id for r in SHIPPED.restrictions if r.id in limits]  # in its place
    assert {i.name for i in found.images} == {i.name for i in SHIPPED.images} - {"vllm-rdna4"} | {"mine"}
    assert found.origins["own"] == str(file)
    assert found.origins["smollm2"] == "catalogue"
    assert found.sources["image mine"] == str(file)
    assert "image vllm-cuda" not in found.sources


def test_models_d_wins_and_a_name_means_one_model(paths: Paths) -> None:
    paths.models_d.mkdir()
    (paths.models_d / "own.toml").write_text(MODEL)
    (paths.catalog_d / "own.toml").write_text(MODEL)
    with pytest.raises(ConfigProblems, match="already taken"):
        config.load(paths)


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        ("[[imag]]\n", "imag", "did you mean 'image'?"),
        (IMAGE.replace("vendor", "vender"), "image[mine].vender", "did you mean 'vendor'?"),
        (RESTRICTION.replace('"limit"', '"limt"'), f"{SLOTS}.effect", "limit"),
        (RESTRICTION.replace("2026-11-30", "2026-13-30"), None, "text needs quotes"),
        (RESTRICTION.replace("parallel = 16", "parallel = -1"), f"{SLOTS}.limits.parallel", "greater"),
        (RESTRICTION.replace("limits =", "limts ="), f"{SLOTS}.limts", "did you mean 'limits'?"),
        (IMAGE + "digest = 'sha256:12'\n", "image[mine].digest", "allowed"),
        (IMAGE + IMAGE, "image[mine].name", "remove one"),
        ("[[image]]\nname = 'vllm-cuda'\ndisabled = true\nspeed = 2.0\n", "image[vllm-cuda]", "only name"),
        ("[[restriction]]\ndisabled = true\n", "restriction[0]", "only id"),
        ("[[image]]\nname = 'vllm-cuda'\ndisabled = 'yes'\n", "image[vllm-cuda].disabled", "disabled = true"),
        ("image = 3\n", "image", ""),
    ],
)  # fmt: skip
def test_a_typo_names_file_and_key(paths: Paths, text: str, key: str | None, hint: str) -> None:
    file = paths.catalog_d / "own.toml"
    file.write_text(text)
    with pytest.raises(ConfigProblems) as caught:
        config.load(paths)
    first = caught.value.problems[0]
    assert (first.file, first.key) == (str(file), key)
    assert hint in first.hint


def test_a_wrong_file_says_all_that_is_wrong_and_the_others_count(tmp_path: Path) -> None:
    good, bad = tmp_path / "a.toml", tmp_path / "b.toml"
    good.write_text(IMAGE)
    bad.write_text("[[image]]\nname = 'x'\n[[restriction]]\nid = 'y'\n")
    problems: list[Problem] = []
    layer = read([good, bad, tmp_path / "missing.toml"], problems)
    assert [i.name for i in layer.image] == ["mine"]
    assert {p.file for p in problems} == {str(bad), str(tmp_path / "missing.toml")}
    assert len(problems) > 3
    assert laid_over(SHIPPED, layer).images[-1].name == "mine"


def test_a_change_of_it_is_told_and_touches_no_engine(paths: Paths) -> None:
    before = config.load(paths)
    (paths.catalog_d / "own.toml").write_text(IMAGE + "[[restriction]]\nid = 'vllm-dflash-slots'\ndisabled = true\n")
    changes = config.diff(before, config.load(paths))
    assert [(c.subject, c.kind, c.action) for c in changes] == [
        ("catalogue image mine", "added", "none"),
        ("catalogue restriction vllm-dflash-slots", "added", "none"),
    ]
