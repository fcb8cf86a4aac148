"""Which options vLLM and SGLang know, and which variables llama-server reads, from `flags.toml`. Pure."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from orchestrator.models import Runtime


@dataclass(frozen=True, slots=True)
class Known:
    """The options of one server: how many words follow each (-1: all up to the next option), and those that older
    versions knew."""

    arity: Mapping[str, int]
    gone: frozenset[str]


@cache
def known(runtime: Runtime) -> Known:
    """The options of vLLM or SGLang. Blocking (one small file), once."""
    part = _data()[runtime.value]
    arity = {name: count for key, count in (("none", 0), ("one", 1), ("many", -1)) for name in part[key].split()}
    return Known(arity, frozenset(part.get("gone", "").split()))


@cache
def variables() -> Mapping[str, str]:
    """llama-server's variables, and the option that each stands for."""
    found: Mapping[str, str] = _data()["environment"]
    return found


@cache
def _data() -> Mapping[str, dict[str, str]]:
    text = (resources.files(__package__) / "flags.toml").read_text(encoding="utf-8")
    found: Mapping[str, dict[str, str]] = tomllib.loads(text)
    return found
