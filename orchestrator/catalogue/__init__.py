"""What ships with Outrider: models, drafters, images and known combinations, as TOML files in this folder.

Every size, shape and claim names its source. A user's models are laid over it by name
(`Catalogue.overlay`). Pinning images to digests and repositories to revisions happens on the host.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from orchestrator.catalogue.restrictions import Restriction
from orchestrator.catalogue.types import EMBEDDED_IMAGE, Catalogue, Combination, ImageEntry, in_range
from orchestrator.errors import ConfigError
from orchestrator.models import Frozen, ModelEntry

__all__ = ["EMBEDDED_IMAGE", "Catalogue", "Combination", "ImageEntry", "in_range", "load", "shipped"]

_KINDS: Mapping[str, type[Frozen]] = {
    "model": ModelEntry,
    "image": ImageEntry,
    "combination": Combination,
    "restriction": Restriction,
}


def shipped() -> Catalogue:
    """The catalogue in this package. Blocking (a handful of small files); raises `ConfigError`."""
    folder = resources.files(__package__) / "data"
    return load(entry for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load(files: Iterable[Path | Traversable]) -> Catalogue:
    """Read catalogue files: tables `[[model]]`, `[[image]]`, `[[combination]]`, `[[restriction]]`.

    Raises `ConfigError` with file and key for a bad file, an unknown table, a name given twice.
    """
    found: dict[str, list[Any]] = {kind: [] for kind in _KINDS}
    origins: dict[str, str] = {}
    for file in sorted(files, key=lambda f: f.name):
        for kind, tables in _tables(file).items():
            for position, table in enumerate(tables):
                item = _item(file.name, kind, position, table)
                name = getattr(item, "name", None)
                if name is not None and name in {have.name for have in found[kind]}:
                    raise ConfigError(file.name, f"{kind}[{position}].name", f"{name!r} is defined twice")
                found[kind].append(item)
                if kind == "model":
                    origins[str(name)] = "catalogue"
    return Catalogue(
        models=tuple(found["model"]),
        images=tuple(found["image"]),
        combinations=tuple(found["combination"]),
        restrictions=tuple(found["restriction"]),
        origins=origins,
    )


def _tables(file: Path | Traversable) -> Mapping[str, list[Any]]:
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(file.name, None, f"cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(file.name, None, f"is not TOML: {error}") from error
    for key, value in data.items():
        if key not in _KINDS:
            raise ConfigError(file.name, key, "is unknown here", hint=f"one of {', '.join(_KINDS)}")
        if not isinstance(value, list):
            raise ConfigError(file.name, key, "must be a list of tables", hint=f"write [[{key}]]")
    return data


def _item(file: str, kind: str, position: int, table: Any) -> Frozen:
    try:
        return _KINDS[kind].model_validate(table)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join((f"{kind}[{position}]", *(str(part) for part in first["loc"])))
        raise ConfigError(file, key, first["msg"]) from error
