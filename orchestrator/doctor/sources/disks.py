"""The file systems that state, weights, images and their temporary files lie on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from orchestrator.doctor.machine import DiskUse
from orchestrator.doctor.sources.look import Look, Unseen


def disks(look: Look, places: Mapping[str, str]) -> tuple[DiskUse, ...]:
    """Of what is put where (`state` to a path). Raises `Unseen` when none of them can be asked."""
    found = []
    complaint = "no folder is known"
    for what, path in places.items():
        here = look.at(path)
        while not here.exists() and here != here.parent:
            here = here.parent
        try:
            found.append(_use(what, path, here))
        except OSError as error:
            complaint = f"{path}: {error.strerror}"
    if not found:
        raise Unseen(complaint)
    return tuple(found)


def _use(what: str, path: str, here: Path) -> DiskUse:
    info = os.statvfs(here)
    return DiskUse(
        what=what,
        path=path,
        device=here.stat().st_dev,
        total=info.f_frsize * info.f_blocks,
        free=info.f_frsize * info.f_bavail,
        inodes=info.f_files,
        inodes_free=info.f_favail,
        read_only=bool(info.f_flag & os.ST_RDONLY),
    )
