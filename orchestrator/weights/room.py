"""Whether the store may take so many bytes: its disk, its quota, and what a start needs besides. Blocking."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestrator import disk
from orchestrator.errors import DiskFull
from orchestrator.weights.meter import amount
from orchestrator.weights.shelf import used_bytes


def check(
    store: Path,
    size: int,
    what: str,
    *,
    quota: int | None,
    low_water: float,
    also: Sequence[disk.Load] = (),
    besides: Sequence[disk.Load] = (),
) -> None:
    """Raises `DiskFull` or `DiskReadOnly` unless `size` more bytes of `what` may go into the store.

    `also` is what the same start still brings to a disk (an image), `besides` what other pulls do. Nothing to bring
    is always allowed.
    """
    if size <= 0:
        return
    if quota is not None:
        used = used_bytes(store)
        coming = sum(load.size for load in besides if load.path == store)
        if used + coming + size > quota:
            also_coming = f" and {amount(coming)} on their way" if coming else ""
            raise DiskFull(
                f"{what} needs {amount(size)} more, and the store has {amount(used)}{also_coming} of its"
                f" {amount(quota)}",
                hint="raise `[store] quota_bytes`, or remove a model: `outrider model ls` shows what each takes",
                evidence={"quota_bytes": quota, "used_bytes": used, "needed_bytes": size},
            )
    disk.check([disk.Load(store, size, what), *also], low_water=low_water, besides=besides)
