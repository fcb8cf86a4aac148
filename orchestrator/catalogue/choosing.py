"""Which of several known combinations speaks about a candidate, and what it is worth there. Pure.

The most special one: what it names counts, an exact name more than a pattern; then the newest. One for another
version of the engine speaks only where none is for this one.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

from orchestrator.catalogue.types import Combination
from orchestrator.catalogue.versions import in_range
from orchestrator.models import Runtime
from orchestrator.plan import Evidence, Method

NAMES = ("model", "variant", "image", "arch", "drafter")
"""The keys that say what a combination is about, besides runtime, method and the number of GPUs."""


def best(
    combinations: Iterable[Combination], *, model: str, variant: str, runtime: Runtime, image: str, version: str | None,
    arch: str, method: Method, drafter: str, tensor_parallel: int = 1,
) -> Combination | None:  # fmt: skip
    """The combination that counts for this candidate; None where nothing is known of it."""
    covering = [
        c
        for c in combinations
        if c.runtime is runtime
        and c.method is method
        and c.covers(
            model=model, variant=variant, runtime=runtime, image=image, arch=arch, method=method, drafter=drafter,
            tensor_parallel=tensor_parallel,
        )
    ]  # fmt: skip
    return max(covering, key=lambda c: (in_range(version, c.versions), *special(c), c.date, c.id), default=None)


def special(known: Combination) -> tuple[int, int]:
    """How much it names, and how much of that exactly."""
    words = [word for name in NAMES if (word := getattr(known, name)) != "*"]
    exact = sum(not any(sign in word for sign in "*?[") for word in words)
    parallel = known.tensor_parallel is not None
    return len(words) + parallel, exact + parallel


def worth(known: Combination | None, version: str | None, today: dt.date | None) -> Evidence:
    """A proof counts for its versions and until it expires; a refutation for its versions."""
    if known is None or not in_range(version, known.versions):
        return Evidence.UNTRIED
    return Evidence.UNTRIED if expired(known, today) and known.evidence is Evidence.PROVEN else known.evidence


def expired(known: Combination, today: dt.date | None) -> bool:
    """Whether its day has passed."""
    return known.expires is not None and today is not None and today > known.expires
