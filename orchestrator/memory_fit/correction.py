"""What this host has measured corrects what is only estimated: bounded, and said."""

from __future__ import annotations

from dataclasses import dataclass, replace

from orchestrator.measured import Residual
from orchestrator.memory_fit.sizes import GIB, gibibytes
from orchestrator.plan import ExpectedMemory

SETTLED = 2
"""Starts after which a residual is believed: what remains of the margin is then a quarter."""
MOST = 0.15
"""The largest share of the likely total that a residual may add: beyond it something else was in use at the peak."""
MOST_BYTES = 2 * GIB
"""Or this, whichever is more: vLLM's excess over its request and unified memory were seen up to 1.75 GiB."""


@dataclass(frozen=True, slots=True)
class Corrected:
    """The forecast as this host's measurements have it, and the sentence that says so."""

    expected: ExpectedMemory
    text: str


def corrected(expected: ExpectedMemory, residual: Residual) -> Corrected:
    """Apply a residual (bytes in use at the peak beyond the *likely* total of then).

    Up it is bounded by 15 % of the likely total or 2 GiB, whichever is more; down by what is estimated at all, for
    weights and caches are there whatever was seen. The margin shrinks to a quarter once two starts agree on it.
    """
    likely = expected.likely
    most = max(int(likely * MOST), MOST_BYTES)
    applied = max(-expected.estimated, min(residual.bytes, most))
    margin = expected.margin // 4 if residual.starts >= SETTLED else max(expected.margin - max(applied, 0), 0)
    starts = "one start" if residual.starts == 1 else f"{residual.starts} starts"
    more = "more" if residual.bytes >= 0 else "less"
    text = f"{starts} here (last {residual.seen}) took {gibibytes(abs(residual.bytes))} {more} than expected"
    if applied != residual.bytes:
        text += f"; {gibibytes(abs(applied))} of that are counted, the rest is taken for something else's"
    low = None if expected.low is None else min(expected.low + applied, likely + applied)
    return Corrected(
        replace(
            expected,
            total=likely + applied + margin,
            margin=margin,
            low=low,
            correction=expected.correction + applied,
        ),
        text,
    )
