"""What this host has measured of combinations that ran here: it corrects what is only estimated. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.plan import Method


@dataclass(frozen=True, slots=True)
class Ran:
    """What ran, as far as a measurement may be carried over to another plan. `arch` is the device's, or `cpu`."""

    model: str
    variant: str
    runtime: str
    version: str | None
    arch: str
    method: Method
    drafter: str | None


@dataclass(frozen=True, slots=True)
class Residual:
    """Bytes that were in use at the peak beyond what was to be expected without margin and correction (negative:
    less), of how many starts, the newest on which day (ISO)."""

    bytes: int
    starts: int
    seen: str


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens a second of one stream alone, over how many seconds of decoding."""

    tokens_s: float
    over_s: float
    seen: str


@dataclass(frozen=True, slots=True)
class Refuted:
    """What a combination did wrong here, by whose word, on which day (ISO)."""

    text: str
    source: str
    seen: str


@dataclass(frozen=True, slots=True)
class Measured:
    """All that this host knows from running. Empty on a new host."""

    memory: Mapping[Ran, Residual] = field(default_factory=dict)
    speed: Mapping[Ran, Speed] = field(default_factory=dict)
    load_s: Mapping[Ran, float] = field(default_factory=dict)
    """Seconds from start to ready, the slower of what was seen lately."""
    first_s: Mapping[Ran, float] = field(default_factory=dict)
    """Seconds within which 19 of 20 streams that were alone had their first token: the median of what was seen."""
    refuted: Mapping[Ran, Refuted] = field(default_factory=dict)
    """What answered wrongly here, twice: it is not planned until that is forgotten."""


NOTHING = Measured()
