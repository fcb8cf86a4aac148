"""Memory that an APU's GPU holds and no counter shows: by how much less the system has available.

On some kernels what HIP allocates is counted nowhere, but it is gone from MemAvailable. What is
gone is compared with a baseline: what everything but the GPU took while no compute process was on it.
"""

from __future__ import annotations

from hosts.facts import Memory


class Growth:
    """The baseline of one GPU.

    It cannot go stale: while nothing computes it is taken anew with each sample, and while something
    does it can only sink, to what was seen to be enough. So at its oldest it is as old as the compute
    process that has been there longest, and what others take beside that process counts as the GPU's:
    an error to the safe side, and one that ends with the process. Of a GPU that computes already when
    the first sample is taken there is no baseline, and growth is unknown until it has rested once.
    """

    def __init__(self) -> None:
        self._others: int | None = None

    def used(self, system: Memory, counted: int, *, computing: bool) -> int | None:
        """Bytes that the GPU must hold, at least `counted` (what the counters show); None without a baseline."""
        taken = max(system.total - system.available, 0)
        others = max(taken - counted, 0)
        if not computing:
            self._others = others
        elif self._others is not None:
            self._others = min(self._others, others)
        return None if self._others is None else max(taken - self._others, counted)
