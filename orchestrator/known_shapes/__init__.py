"""Models whose files need not be here: their shapes and what their files weigh, as data with sources (`shapes.toml`,
`more.toml`, `further.toml`).

`find` recognises a model in a text such as `unsloth/Qwen3.8-27B-GGUF UD-Q4_K_XL` (`matching.py`). What it
does not know is None: a shape is never guessed from a name that merely looks alike.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from orchestrator.known_shapes.matching import Names, match, names_of
from orchestrator.models import Shape
from orchestrator.plan import Method


@dataclass(frozen=True, slots=True)
class Size:
    """What a model weighs in one quantisation: bytes of its files. `by` is the publisher, where it is about one."""

    words: str
    bytes: int
    source: str
    by: str | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """One model. `parameters` are of the text model; vision and MTP head come on top of them."""

    name: str
    names: tuple[str, ...]
    shape: Shape
    source: str
    parameters: int | None = None
    expert_parameters: int = 0
    expert_width: int | None = None
    """Of one expert, where engines pad it."""
    vision: int = 0
    image_tokens: int | None = None
    """The most tokens of one image, where that is few: the encoder's profile then costs next to nothing."""
    mtp: int = 0
    native: str | None = None
    """The quantisation it was published in, where that is not 16 bit."""
    ollama: str | None = None
    """What Ollama's library has it in, where a tag says nothing else."""
    tags: frozenset[str] = frozenset()
    """Further size words that may stand in its name, such as `671b`."""
    sizes: tuple[Size, ...] = ()


@dataclass(frozen=True, slots=True)
class KnownDrafter:
    """A drafter model for some targets. `shape` is None where only its size is known."""

    name: str
    method: Method
    targets: tuple[str, ...]
    source: str
    shape: Shape | None = None
    draft_tokens: int | None = None
    words: tuple[str, ...] = ()
    """What a text says of it that it does not say of others of the method."""
    sizes: tuple[Size, ...] = ()


_FILES = ("shapes.toml", "more.toml", "further.toml")


@lru_cache(maxsize=1)
def _data() -> Mapping[str, Any]:
    tables: dict[str, Any] = {}
    for name in _FILES:
        for kind, entries in tomllib.loads(files(__name__).joinpath(name).read_text()).items():
            tables.setdefault(kind, []).extend(entries)
    return tables


@lru_cache(maxsize=1)
def known() -> tuple[Known, ...]:
    """All models, in the order of the file. Raises ValueError (pydantic's) only if the shipped data is broken."""
    made: dict[str, Known] = {}
    for table in _data()["model"]:
        base = made[table["same_as"]] if "same_as" in table else None
        given = {key: value for key, value in table.items() if key not in {"same_as", "shape", "sizes"}}
        given["names"] = tuple(given["names"])
        given["tags"] = frozenset(given.get("tags", ()))
        given["sizes"] = tuple(Size(**size) for size in table.get("sizes", ()))
        if base is None:
            given["shape"] = Shape(**table["shape"])
        else:
            given = {
                "shape": base.shape, "parameters": base.parameters, "expert_parameters": base.expert_parameters,
                "vision": base.vision, "mtp": base.mtp,
            } | given  # fmt: skip
        made[table["name"]] = Known(**given)
    return tuple(made.values())


@lru_cache(maxsize=1)
def drafters() -> tuple[KnownDrafter, ...]:
    """All drafter models."""
    found = []
    for table in _data()["drafter"]:
        given = dict(table)
        given["method"] = Method(given["method"])
        given["targets"] = tuple(given["targets"])
        given["words"] = tuple(given.get("words", ()))
        given["sizes"] = tuple(Size(**size) for size in given.get("sizes", ()))
        if "shape" in given:
            given["shape"] = Shape(**given["shape"])
        found.append(KnownDrafter(**given))
    return tuple(found)


def drafter_for(target: str, method: Method, text: str = "") -> KnownDrafter | None:
    """The drafter of that method for a known model, by the model's name here, and one that a text speaks of first;
    None when none is known."""
    fitting = [d for d in drafters() if target in d.targets and d.method is method]
    told = [d for d in fitting if any(word in text.lower() for word in d.words)]
    return next(iter(told or [d for d in fitting if not d.words] or fitting), None)


@lru_cache(maxsize=1)
def _names() -> Names:
    return names_of(known())


@lru_cache(maxsize=4096)
def find(text: str) -> Known | None:
    """The model that a text names; None when it names none, several, or something made from one."""
    return match(text, _names())
