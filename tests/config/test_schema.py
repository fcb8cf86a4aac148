"""The published schema is the one that the code means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from orchestrator.config import EngineDefaults, GatewaySettings, SettingsFile
from orchestrator.config_schema import schema
from orchestrator.models import ModelEntry

PUBLISHED = Path(__file__).parents[2] / "deploy" / "outrider.schema.json"


def test_the_published_schema_is_current() -> None:
    assert json.loads(PUBLISHED.read_text()) == schema(), "run `make schema`"


def test_every_key_is_in_the_schema_and_nothing_else_is_allowed() -> None:
    definitions: dict[str, Any] = schema()["$defs"]
    for kind in (SettingsFile, GatewaySettings, EngineDefaults, ModelEntry):
        table = definitions[kind.__name__]
        assert set(table["properties"]) == set(kind.model_fields)
        assert table["additionalProperties"] is False


def test_both_kinds_of_file_are_described() -> None:
    assert [branch["$ref"] for branch in schema()["anyOf"]] == ["#/$defs/SettingsFile", "#/$defs/ModelsFile"]
