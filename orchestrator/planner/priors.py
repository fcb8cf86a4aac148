"""What is expected of speed where nobody has measured it: numbers from `priors.toml`, with their sources. Pure values.

A row speaks about what it names (`moe`: few experts of many are active; `arch` are patterns) and nothing else; the
first that fits counts, so special rows stand before general ones.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from itertools import pairwise
from typing import TypeVar

from pydantic import Field

from orchestrator.kinds import Backend
from orchestrator.models import Frozen, Runtime
from orchestrator.plan import Method


@dataclass(frozen=True, slots=True)
class Seen:
    """What priors are looked up by."""

    runtime: Runtime
    backend: Backend
    arch: str
    moe: bool
    method: Method


class Row(Frozen):
    """What a prior speaks about, and who says so."""

    runtime: Runtime | None = None
    backend: Backend | None = None
    arch: tuple[str, ...] = ()
    moe: bool | None = None
    method: Method | None = None
    source: str

    def fits(self, seen: Seen) -> bool:
        return (
            self.method in (None, seen.method)
            and self.runtime in (None, seen.runtime)
            and self.backend in (None, seen.backend)
            and self.moe in (None, seen.moe)
            and (not self.arch or any(fnmatchcase(seen.arch, pattern) for pattern in self.arch))
        )


class Batching(Row):
    """All requests' decode speed next to one alone without speculation; or that of several devices next to one's."""

    at: tuple[int, ...]
    times: tuple[float, ...]

    def factor(self, concurrency: int) -> float:
        """Between two numbers the logarithm is interpolated, beyond the last it stays."""
        return interpolated(self.at, self.times, concurrency)


class Gain(Row):
    """Decode speed next to no speculation at one request, and at how many requests that is used up."""

    gain: float = Field(gt=0)
    crossover: int = Field(ge=1)


class Draft(Row):
    """How many tokens to draft from `at` requests on."""

    at: int = Field(ge=1)
    tokens: int = Field(ge=1)


class Quality(Frozen):
    """What answers of a quantisation are worth next to those of four bits and more. `quantisation` are patterns."""

    quantisation: tuple[str, ...]
    worth: float = Field(gt=0, le=1)
    source: str


class Room(Frozen):
    """What a context that nobody asked for is worth next to a long one."""

    at: tuple[int, ...]
    worth: tuple[float, ...]
    source: str

    def factor(self, context: int) -> float:
        """Between two contexts the logarithm is interpolated; below the first and beyond the last it stays."""
        return interpolated(self.at, self.worth, context)


class Priors(Frozen):
    """All of them."""

    batching: tuple[Batching, ...]
    sharing: tuple[Batching, ...]
    gain: tuple[Gain, ...]
    draft: tuple[Draft, ...]
    quality: tuple[Quality, ...]
    room: Room


def interpolated(at: Sequence[int], values: Sequence[float], where: int) -> float:
    """A value between the points around it, on logarithmic scales; before the first and after the last it stays.

    >>> interpolated((1, 4), (1.0, 4.0), 2), interpolated((2, 4), (0.5, 1.0), 1), interpolated((2, 4), (0.5, 1.0), 9)
    (2.0, 0.5, 1.0)
    """
    points = list(zip(at, values, strict=True))
    if where <= at[0]:
        return values[0]
    for (low, less), (high, more) in pairwise(points):
        if low <= where < high:
            part = math.log(where / low) / math.log(high / low)
            return float(less * (more / less) ** part)
    return values[-1]


@cache
def shipped() -> Priors:
    """Those in this package. Read once; a bad file is a bug and raises pydantic's error."""
    text = (resources.files(__package__) / "priors.toml").read_text(encoding="utf-8")
    return Priors.model_validate(tomllib.loads(text))


@cache
def batching(seen: Seen) -> Batching:
    """The row for this runtime and device; without one a runtime is taken to serve one request at a time."""
    return first(shipped().batching, seen) or Batching(at=(1,), times=(1.0,), source="nothing is known")


@cache
def sharing(seen: Seen) -> Batching:
    """What several devices make of one device's speed; without a row they only hold more."""
    return first(shipped().sharing, seen) or Batching(at=(1,), times=(1.0,), source="nothing is known")


@cache
def gain(seen: Seen) -> Gain:
    """The row for this method; without one speculation is taken to win and lose nothing."""
    return first(shipped().gain, seen) or Gain(gain=1.0, crossover=1, source="nothing is known")


@cache
def quality(quantisation: str) -> float:
    """What answers of these weights are worth; 1 where no row speaks about them."""
    rows = shipped().quality
    return next((r.worth for r in rows if any(fnmatchcase(quantisation, p) for p in r.quantisation)), 1.0)


@cache
def room(context: int) -> float:
    """What a context that nobody asked for is worth next to a long one."""
    return shipped().room.factor(context)


@cache
def draft(seen: Seen, concurrency: int) -> Draft | None:
    """The row for this method that speaks about the most requests of those that are not more than these."""
    rows = [r for r in shipped().draft if r.fits(seen)]
    special = [r for r in rows if (r.runtime, r.backend, r.moe) != (None, None, None) or r.arch]
    for among in (special, rows):
        able = [r for r in among if r.at <= concurrency]
        if able:
            return max(able, key=lambda r: r.at)
    return None


R = TypeVar("R", bound=Row)


def first(rows: Iterable[R], seen: Seen) -> R | None:
    """The first row that fits."""
    return next((row for row in rows if row.fits(seen)), None)


def at(gain_alone: float, crossover: int | None, concurrency: int) -> float:
    """A method's gain at so many requests: it falls with their logarithm to 1 at the crossover, where it is used up,
    and from there on speculation loses.

    >>> round(at(2.0, 8, 8), 3), round(at(2.0, 8, 1), 3), round(at(0.9, 1, 4), 3)
    (0.9, 2.0, 0.9)
    """
    if concurrency <= 1 or crossover is None or gain_alone <= 1:
        return gain_alone
    if crossover <= 1:
        return min(gain_alone, USED_UP)
    used_up = USED_UP if concurrency >= crossover else 1.0
    return used_up * max(math.pow(gain_alone, 1 - math.log(concurrency) / math.log(crossover)), LEAST)


USED_UP = 0.9
"""At the crossover speed is equal, and drafting costs power and memory that sequences could have."""
LEAST = 0.6
"""No known method that still works costs more than this at its worst: 63-75 % are left of llama.cpp's speed at four
streams on gfx1151 (ggml-org/llama.cpp#27342), 60 % of vLLM's for MTP at 35B-A3B (club-3090)."""
