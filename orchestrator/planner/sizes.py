"""Which size: the largest usual context for as many sequences as are wanted, that fits. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

Found = TypeVar("Found")

USUAL = (
    1024, 2048, 4096, 8192, 12288, 16384, 24576, 32768, 49152, 65536, 98304, 131072,
)  # fmt: skip
"""Contexts that are tried when nobody says one; a model's own longest comes on top where it is shorter."""
SLOTS = (4, 2, 1)
"""Sequences at once that are tried when nobody says how many."""
MOST_GPU, MOST_SHARED, MOST_CPU = 131072, 65536, 8192
"""The most context that is taken unasked: a GPU is for its engine; memory that the rest of the machine uses too
is not all taken; and a CPU reads so slowly that a long prompt is no use."""
LEAST_GPU = 2048


def contexts(wished: int | None, *, least: int, most: int) -> tuple[int, ...]:
    """The contexts to try, rising. `most` is what is sensible, safe and trained for, whichever is least."""
    if wished is not None:
        return (wished,)
    return (*(c for c in USUAL if least <= c < most), most)


def slots(wished: int | None, most: int | None) -> tuple[int, ...]:
    """Sequences at once to try, falling; never more than is safe (`most`)."""
    asked = SLOTS if wished is None else (wished,)
    return tuple(dict.fromkeys(n if most is None else min(n, most) for n in asked))


def worth(context: int, parallel: int) -> float:
    """What a size is worth: double the context is worth more than double the sequences, and less than four times."""
    return math.log2(context) + 0.75 * math.log2(parallel)


def largest(choices: Sequence[int], parallels: Sequence[int], look: Callable[[int, int], Found | None]) -> Found | None:
    """The most worthy size that `look(context, parallel)` finds to fit; None when none does.

    A context that fits says that all shorter ones do, so few are looked at. `choices` rise, `parallels` fall.
    """
    best: tuple[float, Found] | None = None
    for parallel in parallels:
        if best is not None and worth(choices[-1], parallel) <= best[0]:
            continue
        low, high, found = -1, len(choices), None
        at = high - 1  # the largest first: where memory is plenty, that is all
        while low + 1 < high:
            hit = look(choices[at], parallel)
            if hit is None:
                high = at
            else:
                low, found = at, hit
            at = (low + high) // 2
        if found is not None and (best is None or worth(choices[low], parallel) > best[0]):
            best = (worth(choices[low], parallel), found)
    return None if best is None else best[1]
