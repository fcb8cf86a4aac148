"""What stands behind the elements: recorded launches and parsers (`evidence/*.json`) and rules (`rules.toml`)."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.models import Runtime
from tests.coverage.elements import Element, elements, shape

HERE = Path(__file__).parent
FOLDER = HERE / "evidence"
RULES = HERE / "rules.toml"
LLAMA_RULES = HERE / "rules_llama.toml"

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Day = Annotated[str, Field(pattern=r"^20\d\d-\d\d-\d\d$")]


class How(IntEnum):
    """What backs an element, the best last."""

    NONE = 0
    RULE = 1
    PARSER = 2
    LAUNCHED = 3


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Rejection(_Strict):
    """A command line that was refused, and what was said."""

    argv: tuple[str, ...]
    says: str


class Recorded(_Strict):
    """What a launch or a parser said; `sha256` is of the wheel, file or image that said it."""

    runtime: Runtime
    how: Literal["launched", "parser"]
    version: str
    wheel: str
    sha256: Sha256
    date: Day
    test: str
    accepted: tuple[tuple[str, ...], ...]
    rejected: tuple[Rejection, ...] = ()


class Wheel(_Strict):
    """A file that rules cite: a distribution of this name and version, as its index has it."""

    runtime: Runtime
    name: str
    version: str
    file: str
    sha256: Sha256


class Rule(_Strict):
    """What a line of a runtime's source says about flags and values that only a GPU would try.

    `line` is the first line of the place, `names` must all stand in the `span` lines from there on. `says` is
    whether the values are `accepted` or `refused` there, `what` the condition in our own words. `covers` are
    elements as they are written in a command line.
    """

    id: str
    wheel: str
    file: str
    line: Annotated[int, Field(gt=0)]
    span: Annotated[int, Field(gt=0, le=80)] = 20
    says: Literal["accepted", "refused"]
    what: str
    names: tuple[str, ...]
    covers: tuple[str, ...] = ()


class Rules(_Strict):
    wheels: dict[str, Wheel]
    rule: tuple[Rule, ...] = ()


def recorded() -> tuple[Recorded, ...]:
    """Every contribution; raises pydantic's ValidationError for one that is not of the form."""
    return tuple(Recorded.model_validate(json.loads(file.read_text())) for file in sorted(FOLDER.glob("*.json")))


def rules() -> Rules:
    """The rule table."""
    return Rules.model_validate(tomllib.loads(RULES.read_text()))


def llama_rules() -> Rules:
    """The rules of llama.cpp, which are read off a source tree and not off a wheel."""
    return Rules.model_validate(tomllib.loads(LLAMA_RULES.read_text()))


def backing(runtime: Runtime) -> dict[Element, How]:
    """The best that stands behind each element of this runtime."""
    found: dict[Element, How] = {}
    for table in (rules(), llama_rules()):
        for rule in table.rule:
            if table.wheels[rule.wheel].runtime is runtime and rule.says == "accepted":
                for text in rule.covers:
                    found.update(dict.fromkeys(elements(text.split()), How.RULE))
    for record in sorted((r for r in recorded() if r.runtime is runtime), key=lambda r: How[r.how.upper()]):
        for argv in record.accepted:
            found.update(dict.fromkeys(elements(argv), How[record.how.upper()]))
    return found


def missing(emitted: Iterable[tuple[str, ...]], record: Recorded) -> frozenset[tuple[str, ...]]:
    """Command lines of the adapter whose shape the record does not have: it is stale where there are any."""
    known = {shape(argv) for argv in record.accepted}
    return frozenset(argv for argv in emitted if shape(argv) not in known)
