"""TOML files of people: read and validated, every problem told with its file, its key and a hint."""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from orchestrator.config_problems import Problem, explain, not_configuration
from orchestrator.models import Frozen

T = TypeVar("T", bound=Frozen)

LONGEST_FILE = 4 * 2**20
"""Bytes. A larger file is no configuration; reading it whole would be a mistake."""
MOST_DOTS = 200
"""In a line: a key has a part a dot, and reading takes time by the square of them, minutes for 100 kB."""


def read_toml(file: Path, problems: list[Problem]) -> dict[str, Any] | None:
    """A file's TOML, or None with the problem noted."""
    where = str(file)
    try:
        info = file.stat()
        if not stat.S_ISREG(info.st_mode):
            problems.append(Problem(where, None, "is not a regular file", "remove it, or put a file in its place"))
            return None
        if info.st_size > LONGEST_FILE:
            problems.append(
                Problem(where, None, f"is {info.st_size} bytes long", f"a file may have {LONGEST_FILE} bytes at most")
            )
            return None
        text = file.read_bytes().decode()
    except OSError as error:
        hint = (
            f"make it readable for uid {os.getuid()}" if isinstance(error, PermissionError) else "remove or repair it"
        )
        problems.append(Problem(where, None, f"cannot be read: {error.strerror or error}", hint))
        return None
    except UnicodeDecodeError as error:
        problems.append(Problem(where, None, f"is not UTF-8 (byte {error.start})", "save the file as UTF-8"))
        return None
    dotted = next((n for n, line in enumerate(text.split("\n"), 1) if line.count(".") > MOST_DOTS), None)
    if dotted is not None:
        problems.append(Problem(where, None, f"has more than {MOST_DOTS} dots in line {dotted}", "break the line"))
        return None
    try:
        return tomllib.loads(text)
    except RecursionError:
        problems.append(Problem(where, None, "is nested too deeply", "a table starts with [name] or [[name]]"))
        return None
    except ValueError as error:  # TOMLDecodeError, and numbers of thousands of digits
        problems.append(
            Problem(where, None, f"is not TOML: {error}", "text needs quotes; a table starts with [name] or [[name]]")
        )
        return None


def validated(
    kind: type[T], data: dict[str, Any], file: Path, problems: list[Problem], *, dates: bool = False
) -> T | None:
    """The file as a value; None with its problems noted. Strict: TOML has types, so "8" is no number.
    `dates` may stand in this kind of file."""
    odd = list(not_configuration(str(file), data, dates=dates))
    if odd:
        problems.extend(odd)
        return None
    try:
        return TypeAdapter(kind).validate_json(to_json(data), strict=True)
    except ValidationError as error:
        problems.extend(explain(kind, str(file), data, error))
        return None


def clashes(file: Path, data: Mapping[str, Any], taken: dict[str, tuple[str, str]]) -> Iterable[Problem]:
    """Names and aliases share one namespace over all files; `taken` maps each to (file, key).

    Looks at raw data, so that a clash shows even when the entry has other errors.
    """
    entries = data.get("model")
    for entry in entries if isinstance(entries, list) else ():
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            continue
        name = entry["name"]
        aliases = entry.get("aliases")
        claims = [("name", name)]
        if isinstance(aliases, list):
            claims += [("aliases", alias) for alias in aliases if isinstance(alias, str) and alias != name]
        for key, claim in claims:
            dotted = f"model[{name}].{key}"
            if claim in taken:
                other, other_key = taken[claim]
                at = "this file" if other == str(file) else other
                hint = "one name means one model: rename one of them, or remove one file"
                yield Problem(str(file), dotted, f"{claim!r} is already taken by {other_key} in {at}", hint)
            else:
                taken[claim] = (str(file), dotted)
