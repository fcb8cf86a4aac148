"""Taking a command line apart into the elements that need evidence."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

FREE = frozenset({
    "-m", "--model", "--model-path", "--alias", "--served-model-name", "--host", "--uds", "-md", "--api-key",
    "--speculative-draft-model-path", "--speculative-config.model",
})  # fmt: skip
"""Flags whose value is a person's or a machine's word: any name or path will do."""

_FLAG = re.compile(r"--?[a-zA-Z][^=\s]*")
_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?")


@dataclass(frozen=True, slots=True, order=True)
class Element:
    """A flag, or a key within a flag's JSON (`--speculative-config.method`), and its value.

    `value` is empty for a flag without one, `#` for any number, `...` for a name or path.
    """

    flag: str
    value: str = ""

    def __str__(self) -> str:
        return f"{self.flag} {self.value}".rstrip()


def elements(argv: Iterable[str]) -> frozenset[Element]:
    """Every element of a command line; words before the first flag (a positional model) are none."""
    return frozenset(_elements(list(argv)))


def shape(argv: Iterable[str]) -> tuple[str, ...]:
    """The command line with numbers, names and paths blanked out: what a parser's verdict hangs on."""
    blanked: list[str] = []
    flag = ""
    for word in argv:
        if _FLAG.fullmatch(word.partition("=")[0]) and not _NUMBER.fullmatch(word):
            flag = word.partition("=")[0]
            blanked.append(word)
        elif word.startswith('{"'):
            blanked.append(json.dumps(_blanked(json.loads(word), flag), sort_keys=True))
        elif flag:
            blanked.append(_kind(flag, word))
    return tuple(blanked)


def _elements(argv: list[str]) -> Iterator[Element]:
    flag, values = "", 0
    for word in argv:
        name, equals, value = word.partition("=")
        if _FLAG.fullmatch(name) and not _NUMBER.fullmatch(word):
            if flag and not values:
                yield Element(flag)
            flag, values = name, int(bool(equals))
            if equals:
                yield from _value(flag, value)
        elif flag:
            values += 1
            yield from _value(flag, word)
    if flag and not values:
        yield Element(flag)


def _value(flag: str, word: str) -> Iterator[Element]:
    if word.startswith('{"'):
        yield Element(flag, "{}")
        yield from _keys(flag, json.loads(word))
    else:
        yield Element(flag, _kind(flag, word))


def _keys(flag: str, value: dict[str, object]) -> Iterator[Element]:
    for key, inner in value.items():
        name = f"{flag}.{key}"
        if isinstance(inner, dict):
            yield from _keys(name, inner)
        else:
            yield Element(name, _json_kind(name, inner))


def _json_kind(name: str, value: object) -> str:
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, list):
        return "[]"
    return _kind(name, str(value))


def _blanked(value: object, name: str) -> object:
    if isinstance(value, dict):
        return {key: _blanked(inner, f"{name}.{key}") for key, inner in value.items()}
    return _json_kind(name, value)


def _kind(flag: str, word: str) -> str:
    if flag in FREE or "/" in word:
        return "..."
    return "#" if _NUMBER.fullmatch(word) or word == "{port}" else word
