"""Shipped hosts to plan for without having them: facts files, in the form of `outrider probe --json`."""

from __future__ import annotations

import json
from importlib import resources

from hosts.facts import FactsError, HostFacts
from orchestrator.errors import ConfigError, NotFound

__all__ = ["load", "names"]


def names() -> tuple[str, ...]:
    """The shipped profiles."""
    files = (entry.name for entry in resources.files(__package__).iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in files if name.endswith(".json")))


def load(name: str) -> HostFacts:
    """The facts of a shipped profile. Raises `NotFound` naming those there are."""
    if name not in names():
        raise NotFound(f"there is no profile {name!r}", hint=f"one of {', '.join(names())}")
    file = f"{name}.json"
    try:
        return HostFacts.from_dict(json.loads(resources.files(__package__).joinpath(file).read_text(encoding="utf-8")))
    except (FactsError, ValueError) as error:
        raise ConfigError(file, None, str(error)) from error
