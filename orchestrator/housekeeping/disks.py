"""Looking at the file systems that Outrider writes to. Every function blocks and belongs into a thread."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from orchestrator.housekeeping.water import Level, Use

Place = tuple[Use, Path]


def look(places: Iterable[Place]) -> tuple[Level, ...]:
    """The file systems of these places, each once. A place that cannot be looked at is left out."""
    found: dict[int, tuple[Path, set[Use]]] = {}
    for use, path in places:
        try:
            here = _existing(path)
            found.setdefault(here.stat().st_dev, (here, set()))[1].add(use)
        except OSError:
            continue  # a folder that is not there (any more) is told by whoever needs it
    levels = []
    for here, uses in found.values():
        try:
            levels.append(_level(here, frozenset(uses)))
        except OSError:
            continue
    return tuple(levels)


def _level(here: Path, uses: frozenset[Use]) -> Level:
    seen = os.statvfs(here)
    return Level(
        mount=str(_mount_point(here)),
        uses=uses,
        total=seen.f_frsize * seen.f_blocks,
        free=seen.f_frsize * seen.f_bavail,
        inodes=seen.f_files or None,
        inodes_free=seen.f_favail if seen.f_files else None,
    )


def _existing(path: Path) -> Path:
    """The path, or its nearest folder that exists, without links: a mount point's parents are those it has."""
    here = path
    while not here.exists() and here != here.parent:
        here = here.parent
    return here.resolve()


def _mount_point(here: Path) -> Path:
    device = here.stat().st_dev
    while here != here.parent and here.parent.stat().st_dev == device:
        here = here.parent
    return here
