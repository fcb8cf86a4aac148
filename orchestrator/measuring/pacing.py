"""How fast one engine is now: of what the gateway says of its streams, and of its own counters. No I/O, no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from orchestrator.health import pace
from orchestrator.health.pace import Pace, Speed
from orchestrator.measured import Measured, Ran

STRETCHES = 5
"""Stretches of decoding that say how fast it is now: the latest."""
FEWEST = 3
ROW = 64
"""Streams after which their times are kept as what is usual: as many as the gateway has them of."""


@dataclass(slots=True)
class Pacing:
    """Of one engine. While it is `slow` nothing of it is kept: it would become what is usual."""

    slow: bool = False
    now: Pace = field(default_factory=Pace)
    _stretches: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=STRETCHES))
    _kept: int = 0
    """Streams up to the last row."""

    def decoded(self, tokens: int, seconds: float) -> None:
        """One stretch in which one request ran alone."""
        self._stretches.append((tokens, seconds))
        if len(self._stretches) >= FEWEST:
            whole = sum(t for t, _ in self._stretches) / sum(s for _, s in self._stretches)
            self.now = replace(self.now, tokens_s=round(whole, 3))

    def streams(self, said: object) -> tuple[float, int] | None:
        """Take the gateway's word; seconds and streams when they are worth a row."""
        number = said if isinstance(said, Mapping) else {}
        total, kept, first = (number.get(name) for name in ("streams", "kept", "p95_s"))
        if not isinstance(total, int) or not isinstance(kept, int) or not isinstance(first, float | int):
            return None
        self.now = replace(self.now, streams=kept, first_s=float(first))
        if total < self._kept:
            self._kept = 0  # another gateway
        if total - self._kept < ROW:
            return None
        self._kept = total
        return float(first), kept

    def judge(self, ran: Ran, known: Measured) -> None:
        """Compare it with what is usual."""
        speed = known.speed.get(ran)
        usual = None if speed is None else speed.tokens_s
        self.now = replace(self.now, usual_first_s=known.first_s.get(ran), usual_tokens_s=usual)
        self.slow = pace.decide(self.now, was=self.slow).action is Speed.SLOW
