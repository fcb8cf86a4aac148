"""Versions of engines and images, and ranges of them. Pure."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Annotated

from pydantic import AfterValidator

_TERM = re.compile(r"^(<=|>=|==|<|>)(\d+(?:\.\d+)*)$")


@lru_cache(maxsize=1024)
def version_numbers(text: str) -> tuple[int, ...]:
    """`v0.33.0` as (0, 33, 0); a suffix that is no number ends it."""
    numbers = []
    for part in text.lstrip("vb").split("."):
        match = re.match(r"\d+", part)
        if match is None:
            break
        numbers.append(int(match[0]))
        if match[0] != part:
            break
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


@lru_cache(maxsize=4096)
def in_range(version: str | None, versions: str | None) -> bool:
    """Whether a version is in a range such as `>=0.27.1,<0.34`. No range holds all; an unknown version is in none."""
    if not versions:
        return True
    have = () if version is None else version_numbers(version)
    if not have:
        return False
    for term in versions.split(","):
        match = _TERM.match(term.strip())
        if match is None:
            return False
        bound = version_numbers(match[2])
        holds = {"<=": have <= bound, ">=": have >= bound, "==": have == bound, "<": have < bound, ">": have > bound}
        if not holds[match[1]]:
            return False
    return True


def contradictory(versions: str | None) -> bool:
    """Whether no version can be in a range, for its bounds exclude each other."""
    if not versions:
        return False
    bounds = [(m[1], version_numbers(m[2])) for term in versions.split(",") if (m := _TERM.match(term.strip()))]
    lows = [(at, sign == ">") for sign, at in bounds if sign in (">", ">=", "==")]
    highs = [(at, sign == "<") for sign, at in bounds if sign in ("<", "<=", "==")]
    return any(
        low > high or (low == high and (open_low or open_high)) for low, open_low in lows for high, open_high in highs
    )


def _range(text: str) -> str:
    wrong = [term for term in text.split(",") if not _TERM.match(term.strip())]
    if wrong:
        raise ValueError(f"{wrong[0]!r} is no version bound; write for example '>=0.27.1,<0.34'")
    return text


VersionRange = Annotated[str, AfterValidator(_range)]
