"""From single observations to what plans may count on: bounded, without outliers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from orchestrator.measured import Measured, Ran, Refuted, Residual, Speed

K = TypeVar("K")
V = TypeVar("V")
LATELY = 5
"""Starts that count: newer ones replace older ones, for engines, kernels and neighbours change."""
WINDOWS = 20
"""Stretches of decoding that count."""
FASTEST = 20_000
"""Tokens a second that no engine decodes for one request: who claims more has broken counters, or lies."""
LEAST_TOKENS = 64
"""Tokens from which a speed is one: a proof's eight say nothing."""
FAR = 3.0
"""An observation so many times the median distance from the median is an outlier ..."""
NEAR = 64 << 20
"""... unless it is within these bytes of it: small engines differ by what the system gives them."""
STEADY = 0.05
"""... or, for speeds, within this part of it."""


@dataclass(frozen=True, slots=True)
class Start:
    """One start. Bytes; `likely` is what was expected without margin and without correction, `peak` None where the
    engine was killed or never seen. `worked` is whether it has had as many tokens as it can hold: before that its
    caches are empty, and that it took less than expected says nothing. `day` is ISO, `image` an id or reference."""

    ran: Ran
    driver: str | None
    day: str
    load_s: float | None
    likely: int | None
    peak: int | None
    worked: bool = True
    image: str = ""

    @property
    def residual(self) -> int | None:
        """Bytes beyond what was likely, where they say something."""
        if self.peak is None or self.likely is None:
            return None
        beyond = self.peak - self.likely
        return beyond if self.worked or beyond > 0 else None


@dataclass(frozen=True, slots=True)
class Decoding:
    """One stretch in which one request alone ran."""

    ran: Ran
    driver: str | None
    day: str
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class First:
    """The 95th percentile of the times to the first token (seconds) of some streams that were alone."""

    ran: Ran
    driver: str | None
    day: str
    seconds: float
    streams: int


@dataclass(frozen=True, slots=True)
class Refutation:
    """A combination that answered wrongly, and with which driver."""

    ran: Ran
    driver: str | None
    refuted: Refuted


def measured(
    starts: Iterable[Start],
    decodings: Iterable[Decoding],
    drivers: frozenset[str | None],
    refutations: Iterable[Refutation] = (),
    firsts: Iterable[First] = (),
) -> Measured:
    """What is known, of observations (the oldest first) with one of these drivers.

    Of starts those of the image that ran last count: two images of one version are two programs.
    """
    several = _grouped((s.ran, s) for s in starts if s.driver in drivers)
    grouped = {ran: [s for s in found if s.image == found[-1].image] for ran, found in several.items()}
    stretches = _grouped((d.ran, d) for d in decodings if d.driver in drivers)
    return Measured(
        memory={ran: r for ran, several in grouped.items() if (r := _residual(several)) is not None},
        speed={ran: s for ran, several in stretches.items() if (s := _speed(several)) is not None},
        load_s={ran: load for ran, several in grouped.items() if (load := _load(several)) is not None},
        first_s={
            ran: median([f.seconds for f in several[-WINDOWS:]])
            for ran, several in _grouped((f.ran, f) for f in firsts if f.driver in drivers).items()
        },
        refuted={r.ran: r.refuted for r in refutations if r.driver in drivers},
    )


def _grouped(pairs: Iterable[tuple[K, V]]) -> Mapping[K, list[V]]:
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def _residual(starts: Sequence[Start]) -> Residual | None:
    """The largest of the late residuals that agree with each other: a plan must hold at the peak."""
    seen = [(residual, s.day) for s in starts if (residual := s.residual) is not None][-LATELY:]
    if not seen:
        return None
    good = within([value for value, _ in seen], NEAR)
    kept = [(value, day) for value, day in seen if good[0] <= value <= good[1]]
    return Residual(max(value for value, _ in kept), len(kept), max(day for _, day in kept))


def _load(starts: Sequence[Start]) -> float | None:
    """The slower of what was seen lately; a start that was much slower than all others counts, for it may again."""
    return max((s.load_s for s in starts[-LATELY:] if s.load_s is not None), default=None)


def _speed(decodings: Sequence[Decoding]) -> Speed | None:
    lately = [d for d in decodings if d.seconds > 0 and 0 < d.tokens <= FASTEST * d.seconds][-WINDOWS:]
    if not lately:
        return None
    rates = [d.tokens / d.seconds for d in lately]
    low, high = within(rates, STEADY * median(rates))
    kept = [d for d, rate in zip(lately, rates, strict=True) if low <= rate <= high]
    tokens, seconds = sum(d.tokens for d in kept), sum(d.seconds for d in kept)
    if tokens < LEAST_TOKENS:
        return None
    return Speed(round(tokens / seconds, 3), round(seconds, 3), max(d.day for d in kept))


def within(values: Sequence[float], near: float) -> tuple[float, float]:
    """The bounds that no value but an outlier passes: `FAR` median deviations around the median, `near` at least.

    Of two values neither is the outlier; the spread of three or more is known.
    """
    if len(values) < 3:
        return min(values), max(values)
    middle = median(values)
    spread = median([abs(v - middle) for v in values])
    reach = max(FAR * spread, near)
    return middle - reach, middle + reach
