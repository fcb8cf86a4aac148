"""Which size: the largest usual context for as many sequences as are wanted, that fits. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
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

    A context that fits says that all shorter ones do, so few are looked at, and none that would be worth no more than
    what was found. `choices` rise, `parallels` fall.
    """
    best: tuple[float, Found] | None = None
    for parallel in parallels:
        better = choices if best is None else [c for c in choices if worth(c, parallel) > best[0]]
        if not better:
            continue
        at, found = _longest(better, partial(_swapped, look, parallel))
        if found is not None:
            best = (worth(better[at], parallel), found)
    return None if best is None else best[1]


def _swapped(look: Callable[[int, int], Found | None], parallel: int, context: int) -> Found | None:
    return look(context, parallel)


def _longest(choices: Sequence[int], look: Callable[[int], Found | None]) -> tuple[int, Found | None]:
    """The last choice that is found to fit, and where it stands; what is likeliest is looked at first: that all fit,
    or that none does."""
    last = len(choices) - 1
    found = look(choices[last])
    if found is not None or last == 0:
        return last, found
    found = look(choices[0])
    low, high = 0, last
    while found is not None and low + 1 < high:
        middle = (low + high) // 2
        hit = look(choices[middle])
        if hit is None:
            high = middle
        else:
            low, found = middle, hit
    return low, found
