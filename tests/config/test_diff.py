"""What a reload would change, line by line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.config import Config, diff
from orchestrator.config_diff import model_of
from orchestrator.models import ModelEntry
from orchestrator.views import Change


def entry(name: str = "m1", **keys: object) -> ModelEntry:
    variant = {"name": "q8", "format": "gguf", "quantisation": "q8_0", "path": f"{name}.gguf"}
    return ModelEntry.model_validate({"name": name, "variants": [variant], **keys})


def changed(old: ModelEntry, new: ModelEntry) -> list[tuple[str, str]]:
    changes = diff(Config(models=(old,)), Config(models=(new,)))
    assert all((c.subject, c.kind) == ("model m1", "changed") for c in changes)
    return [(c.detail, c.action) for c in changes]


def test_equal_configurations_differ_in_nothing() -> None:
    config = Config(models=(entry(), entry("m2")))
    assert diff(config, config.model_copy()) == ()


def test_the_order_of_models_and_their_files_are_no_difference() -> None:
    one = Config(models=(entry("m1"), entry("m2")), origins={"m1": "a.toml", "m2": "a.toml"})
    other = Config(models=(entry("m2"), entry("m1")), origins={"m1": "b.toml", "m2": "a.toml"})
    assert diff(one, other) == ()


def test_an_added_model_starts_nothing() -> None:
    (change,) = diff(Config(), Config(models=(entry(),)))
    assert (change.subject, change.kind, change.action) == ("model m1", "added", "none")
    assert "q8" in change.detail


def test_a_removed_model_stops() -> None:
    (change,) = diff(Config(models=(entry(),)), Config())
    assert (change.subject, change.kind, change.action) == ("model m1", "removed", "stop")


@pytest.mark.parametrize(
    ("old", "new", "detail", "action"),
    [
        ({"context": 4096}, {"context": 8192}, "context: 4096 -> 8192", "apply"),
        ({}, {"context": 8192}, "context: unset -> 8192", "apply"),
        ({"parallel": 2}, {}, "parallel: 2 -> unset", "apply"),
        ({}, {"runtime": "vllm"}, "runtime: unset -> vllm", "apply"),
        ({}, {"image": "img:1"}, "image: unset -> img:1", "apply"),
        ({}, {"aliases": ["A", "B"]}, "aliases: [] -> [A, B]", "none"),
        ({}, {"load_s": 60}, "load_s: unset -> 60.0", "none"),
        ({}, {"speculation": {"method": "ngram"}}, "speculation.method: auto -> ngram", "apply"),
        ({}, {"speculation": {"draft_tokens": 4}}, "speculation.draft_tokens: unset -> 4", "apply"),
        ({}, {"speculation": {"policy": "qps"}}, "speculation.policy: off -> qps", "none"),
        ({}, {"speculation": {"drop_above": 20}}, "speculation.drop_above: 8.0 -> 20.0", "none"),
    ],
)
def test_a_changed_key(old: dict[str, Any], new: dict[str, Any], detail: str, action: str) -> None:
    assert changed(entry(**old), entry(**new)) == [(detail, action)]


def test_a_key_of_a_variant_is_named_by_the_variant() -> None:
    base = {"name": "q8", "format": "gguf", "quantisation": "q8_0"}
    old = entry(variants=[{**base, "path": "a.gguf"}])
    assert changed(old, entry(variants=[{**base, "path": "b.gguf"}])) == [
        ("variants[q8].path: a.gguf -> b.gguf", "apply")
    ]
    assert changed(old, entry(variants=[{**base, "path": "a.gguf", "source": "me"}])) == [
        ("variants[q8].source: unset -> me", "none")
    ]


def test_variants_that_come_and_go() -> None:
    base = {"format": "gguf", "quantisation": "q", "path": "a"}
    old = entry(variants=[{**base, "name": "q8"}, {**base, "name": "q6"}])
    new = entry(variants=[{**base, "name": "q8"}, {**base, "name": "q4"}])
    assert changed(old, new) == [
        ("variants[q6]: q6 -> absent", "apply"),
        ("variants[q4]: absent -> q4", "apply"),
    ]


def test_the_order_of_variants_matters() -> None:
    base = {"format": "gguf", "quantisation": "q", "path": "a"}
    one, other = {**base, "name": "q8"}, {**base, "name": "q6"}
    assert changed(entry(variants=[one, other]), entry(variants=[other, one])) == [
        ("variants: [q8, q6] -> [q6, q8]", "apply")
    ]


def test_several_keys_give_several_lines() -> None:
    assert changed(entry(context=1), entry(context=2, threads=1)) == [
        ("context: 1 -> 2", "apply"),
        ("threads: unset -> 1", "apply"),
    ]


@pytest.mark.parametrize(
    ("change", "key", "detail", "action"),
    [
        ({"gateway": {"listen": "127.0.0.1:1"}}, "gateway.listen", "127.0.0.1:8080 -> 127.0.0.1:1", "restart_daemon"),
        ({"gateway": {"max_waiting": 1}}, "gateway.max_waiting", "256 -> 1", "restart_daemon"),
        ({"api": {"enabled": False}}, "api.enabled", "true -> false", "restart_daemon"),
        ({"podman": {"socket": "/x"}}, "podman.socket", "unset -> /x", "restart_daemon"),
        ({"timing": {"scale": 0.5}}, "timing.scale", "1.0 -> 0.5", "restart_daemon"),
        ({"host": {"name": "h"}}, "host.name", "unset -> h", "restart_daemon"),
        ({"defaults": {"context": 5}}, "engine.context", "unset -> 5", "apply"),
    ],
)
def test_a_setting(change: dict[str, object], key: str, detail: str, action: str) -> None:
    assert diff(Config(), Config.model_validate(change)) == (Change(key, "changed", detail, action),)


def test_a_line_knows_its_model() -> None:
    changes = diff(Config(), Config.model_validate({"timing": {"scale": 0.5}, "models": [entry("gateway.listen")]}))
    subject: Callable[[Change], str | None] = model_of
    assert [subject(c) for c in changes] == [None, "gateway.listen"]
