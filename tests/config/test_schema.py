"""The published schema is the one that the code means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

from orchestrator.config import Config, EngineDefaults, GatewaySettings, SettingsFile, load
from orchestrator.config_schema import schema
from orchestrator.models import ModelEntry
from orchestrator.paths import find

PUBLISHED = Path(__file__).parents[2] / "deploy" / "outrider.schema.json"


def test_the_published_schema_is_current() -> None:
    assert json.loads(PUBLISHED.read_text()) == schema(), "run `make schema`"


def test_every_key_is_in_the_schema_and_nothing_else_is_allowed() -> None:
    definitions: dict[str, Any] = schema()["$defs"]
    for kind in (SettingsFile, GatewaySettings, EngineDefaults, ModelEntry):
        table = definitions[kind.__name__]
        assert set(table["properties"]) == set(kind.model_fields)
        assert table["additionalProperties"] is False


def test_all_kinds_of_file_are_described() -> None:
    assert [branch["$ref"] for branch in schema()["anyOf"]] == [
        "#/$defs/SettingsFile",
        "#/$defs/ModelsFile",
        "#/$defs/CatalogueFile",
    ]


def test_the_shipped_example_loads_and_shows_the_defaults() -> None:
    config = load(find(PUBLISHED.parent, PUBLISHED.parent / "nowhere"))
    defaults = Config()
    for section in ("host", "gateway", "api", "podman", "timing", "defaults"):
        assert getattr(config, section) == getattr(defaults, section)
    assert [m.name for m in config.models] == ["example-7b"]


def test_the_example_names_every_setting() -> None:
    text = (PUBLISHED.parent / "outrider.toml").read_text()
    for table, field in SettingsFile.model_fields.items():
        many = isinstance(field.default, tuple)  # `[[table]]`, commented out where there are none by default
        body = text.partition(f"\n# [[{table}]]" if many else f"\n[{table}]")[2].partition("\n[")[0]
        kind = get_args(field.annotation)[0] if many else type(field.default)
        assert {key for key in kind.model_fields if f"{key} = " not in body} == set(), table


def test_a_catalogue_table_may_only_drop_what_ships() -> None:
    table = schema()["$defs"]["CatalogueFile"]["properties"]["restriction"]["items"]["anyOf"][1]
    assert (table["required"], table["additionalProperties"]) == (["id", "disabled"], False)
