"""The published JSON schema of the configuration files, for editors and for people."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import models_json_schema

from orchestrator.catalogue.reading import CatalogueFile, key_of
from orchestrator.config import ModelsFile, SettingsFile


def schema() -> dict[str, Any]:
    """One JSON schema (draft 2020-12) for all kinds of file: one holds settings, models or a catalogue's tables."""
    _, document = models_json_schema(
        [(SettingsFile, "validation"), (ModelsFile, "validation"), (CatalogueFile, "validation")]
    )
    for kind, table in document["$defs"]["CatalogueFile"]["properties"].items():
        table["items"] = {"anyOf": [table["items"], _dropped(key_of(kind))]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Outrider configuration",
        "description": "outrider.toml holds settings; each file of models.d/ holds [[model]] tables; each of"
        " catalog.d/ holds what the catalogue gets besides: [[image]], [[combination]], [[restriction]] and more.",
        "anyOf": [{"$ref": "#/$defs/SettingsFile"}, {"$ref": "#/$defs/ModelsFile"}, {"$ref": "#/$defs/CatalogueFile"}],
        **document,
    }


def _dropped(key: str) -> dict[str, Any]:
    """A table of `catalog.d` that only drops what ships."""
    return {
        "type": "object",
        "properties": {key: {"type": "string"}, "disabled": {"const": True}},
        "required": [key, "disabled"],
        "additionalProperties": False,
    }
