"""Every command line of the recipes comes out as a deployment or as an explained refusal."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from orchestrator import planner
from orchestrator.catalogue import shipped
from orchestrator.catalogue.restrictions import Restriction
from orchestrator.importing import Here, Item, Outcome, read
from orchestrator.model_toml import dumps
from orchestrator.models import ModelEntry
from orchestrator.profiles import load as profile

RECIPES = tomllib.loads((Path(__file__).parent / "recipes.toml").read_text())["recipe"]
HERE = Here(shipped())
SIZES = ("context", "parallel", "tensor_parallel", "batch", "attention_backend")


@pytest.mark.parametrize("recipe", RECIPES, ids=[recipe["name"] for recipe in RECIPES])
def test_every_command_is_a_deployment_or_explained(recipe: dict[str, Any]) -> None:
    items = read(recipe["text"], HERE).items
    said = [(item.outcome.value, None if item.reason is None else item.reason.code) for item in items]
    assert len(items) == len(recipe["expect"]), said
    for item, expected in zip(items, recipe["expect"], strict=True):
        as_expected(item, expected)


def as_expected(item: Item, expected: dict[str, Any]) -> None:
    assert item.outcome.value == expected["outcome"], item
    assert set(expected.get("changes", ())) <= {change.code for change in item.changes}, item.changes
    assert all(change.why for change in item.changes)
    if item.outcome is not Outcome.DEPLOYMENT:
        assert item.entry is None
        assert item.reason is not None
        assert item.reason.code == expected["code"], item.reason
        assert len(item.reason.text) > 20
        return
    entry = item.entry
    assert entry is not None
    [variant] = entry.variants
    drafter = entry.drafters[0] if entry.drafters else None
    have = {
        "model": entry.name,
        "runtime": entry.runtime,
        "variant": variant.name,
        "repository": variant.repository,
        "path": variant.path,
        "method": entry.speculation.method,
        "drafter": None if drafter is None else drafter.path or drafter.repository,
        "draft_tokens": entry.speculation.draft_tokens,
        **{name: getattr(entry, name) for name in SIZES},
    }
    wanted = {key: value for key, value in expected.items() if key not in ("outcome", "changes")}
    assert {key: have[key] for key in wanted} == wanted
    left = set(have) - set(wanted) - {"repository", "path", "variant"}
    assert not any(have[key] for key in left), {key: have[key] for key in left}
    # what would be written is read back as the same
    table = tomllib.loads(dumps(entry))["model"][0]
    assert ModelEntry.model_validate(table) == entry


@pytest.mark.parametrize("host", ["dankserver", "dankclaw"])
def test_a_host_sharpens_the_answer_and_loses_nothing(host: str) -> None:
    here = Here(shipped(), profile(host))
    for recipe in RECIPES:
        for item in read(recipe["text"], here).items:
            assert (item.entry is None) != (item.reason is None)


def test_sizes_that_are_not_safe_here_are_cut_and_then_planned() -> None:
    """A size of an entry is a wish, and the planner refuses one that is not safe."""
    line = (
        "vllm serve Qwen/Qwen3.6-35B-A3B --max-num-seqs 16 --max-model-len 8192 --speculative-config"
        ' \'{"method": "mtp", "num_speculative_tokens": 5}\''
    )
    facts = profile("dankclaw")
    few = Restriction.model_validate({
        "id": "few", "runtime": "vllm", "effect": "limit", "limits": {"parallel": 2, "context": 4096},
        "text": "it breaks", "source": "somebody#1", "date": "2026-11-01",
    })  # fmt: skip
    known = shipped().model_copy(update={"restrictions": (*shipped().restrictions, few)})
    (item,) = read(line, Here(known, facts)).items
    entry = item.entry
    assert entry is not None
    assert (entry.parallel, entry.context, entry.speculation.draft_tokens) == (2, 4096, 4)
    cut = {change.was: change.becomes for change in item.changes if change.becomes and change.code == "known_limit"}
    assert cut == {"parallel 16": "parallel 2", "context 8192": "context 4096", "draft tokens 5": "draft tokens 4"}
    plan = planner.plan(entry, facts, known, {}).plan
    assert plan is not None
    assert (plan.parallel, plan.draft_tokens) == (2, 4)
