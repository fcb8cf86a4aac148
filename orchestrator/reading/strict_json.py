"""JSON from files that nobody vouches for: bounded size and depth, no key twice, no NaN, no endless numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

from orchestrator.errors import ModelFileError
from orchestrator.reading.opened import AGAIN, Opened, opened, take

Object: TypeAlias = Mapping[str, Any]
DIGITS = 20
"""The longest number taken: 2**64 has 20 digits."""
SHOWN = 80


class BadJson(ValueError):
    """What is wrong with a text; becomes a `ModelFileError` with the file's name."""


def read(path: str, longest: int, root: str | None = None, *, quickly: bool = False) -> Object:
    """The JSON object in a file of at most `longest` bytes; `quickly` looks for no key that is said twice, which
    takes longer than all else where there are hundreds of thousands. Raises `ModelFileError`."""
    with opened(path, root) as source:
        return of(source, longest, quickly=quickly)


def of(source: Opened, longest: int, *, quickly: bool = False) -> Object:
    """The JSON object that fills an open file. Raises `ModelFileError`."""
    if source.size > longest:
        raise ModelFileError(f"{source.path} has {source.size} bytes, more than the {longest} it may", hint=AGAIN)
    try:
        return parsed(take(source, source.size), quickly=quickly)
    except BadJson as error:
        raise ModelFileError(f"{source.path} {error}", hint=AGAIN) from error


def parsed(text: bytes, *, quickly: bool = False) -> Object:
    """The JSON object in `text`. Raises `BadJson`."""
    try:
        if quickly:
            found = json.loads(text, parse_constant=_no_constant)
        else:
            found = json.loads(text, object_pairs_hook=_once, parse_int=_whole, parse_constant=_no_constant)
    except RecursionError:
        raise BadJson("is nested too deeply") from None
    except BadJson:
        raise
    except ValueError as error:  # of which JSONDecodeError and UnicodeDecodeError are
        raise BadJson(f"is no JSON: {str(error)[:SHOWN]}") from error
    if not isinstance(found, dict):
        raise BadJson("holds no JSON object")
    return found


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise BadJson(f"says {key[:SHOWN]!r} twice")
            seen.add(key)
    return found


def _whole(digits: str) -> int:
    if len(digits) > DIGITS:
        raise BadJson(f"has a number of {len(digits)} digits")
    return int(digits)


def _no_constant(name: str) -> NoReturn:
    raise BadJson(f"holds {name}, which is no number")
