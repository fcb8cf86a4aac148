"""Whether a disk has room for what is to be put on it.

An image is on the disk twice and a half while it is pulled: its compressed layers in the temporary
folder, the unpacked ones in storage, and what the storage driver keeps beside them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.errors import DiskFull, DiskReadOnly, OutriderError

IMAGE_FACTOR = 2.5
MARGIN = 1.10
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Disk:
    """The file system that holds `path`. Sizes are bytes; `free` is what this user may still take."""

    path: str
    device: int
    total: int
    free: int
    read_only: bool


@dataclass(frozen=True, slots=True)
class Load:
    """Bytes that are to be put below `path`, and what they are."""

    path: Path
    size: int
    what: str


def look(path: Path) -> Disk:
    """The file system of `path`, or of its nearest folder that exists. Blocking; raises OSError."""
    here = path
    while not here.exists() and here != here.parent:
        here = here.parent
    found = os.statvfs(here)
    return Disk(
        path=str(path),
        device=here.stat().st_dev,
        total=found.f_frsize * found.f_blocks,
        free=found.f_frsize * found.f_bavail,
        read_only=bool(found.f_flag & os.ST_RDONLY),
    )


def image_bytes(compressed: int) -> int:
    """Bytes that an image of this compressed size takes while it is pulled."""
    return int(compressed * IMAGE_FACTOR)


def check(loads: Sequence[Load], *, low_water: float, besides: Sequence[Load] = ()) -> None:
    """Whether all of it fits, with ten percent to spare, and leaves no disk below its low water. Blocking.

    What goes onto one file system counts together, and `besides` on those that `loads` go onto: what others
    are bringing there. Raises `DiskFull` with the numbers, `DiskReadOnly`.
    """
    by_device: dict[int, tuple[Disk, int, list[str]]] = {}
    for load in loads:
        disk = look(load.path)
        if disk.read_only:
            raise DiskReadOnly(
                f"{load.what} cannot be put into {load.path}: its file system is mounted read-only",
                hint=f"`mount -o remount,rw` it, or look for its errors in `dmesg`; `findmnt -T {load.path}` names it",
                evidence={"path": str(load.path)},
            )
        first, size, whats = by_device.setdefault(disk.device, (disk, 0, []))
        by_device[disk.device] = (first, size + load.size, [*whats, load.what])
    for load in besides if by_device else ():
        device = look(load.path).device
        if load.size and device in by_device:
            first, size, whats = by_device[device]
            by_device[device] = (first, size + load.size, [*whats, f"{load.what}, which is on its way,"])
    for disk, size, whats in by_device.values():
        needed = int(size * MARGIN)
        kept = int(disk.total * low_water)
        if size and needed + kept > disk.free:
            raise DiskFull(
                f"{' and '.join(whats)} need {needed / GIB:.2f} GiB on the disk of {disk.path}, which has"
                f" {disk.free / GIB:.2f} GiB free and is to keep {kept / GIB:.2f}",
                hint="`outrider prune --dry-run` shows what can go; or put the folder onto a larger disk",
                evidence={"path": disk.path, "needed_bytes": needed, "free_bytes": disk.free, "kept_bytes": kept},
            )


def disk_error(error: OSError, path: Path, what: str) -> OutriderError:
    """What a disk that does not take bytes says, as one of our errors."""
    evidence = {"path": str(path), "errno": error.errno}
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(
            f"the disk of {path} is full: {what} does not fit",
            hint="`outrider prune --dry-run` shows what can go; then again: it goes on where it stopped",
            evidence=evidence,
        )
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return DiskReadOnly(
            f"{path} cannot be written to ({error.strerror}): {what} cannot be stored",
            hint=f"`findmnt -T {path}` says whether it is mounted read-only, `ls -ld` whose it is",
            evidence=evidence,
        )
    return DiskReadOnly(
        f"writing {what} to {path} failed: {error.strerror or error}",
        hint="`dmesg | tail` tells of a disk that fails",
        evidence=evidence,
    )


class OnTheWay:
    """What pulls are bringing to the disks: two that fit alone, and not together, are not both let in.

    First come, first served: each is checked with what came before it.
    """

    def __init__(self) -> None:
        self._under_way: dict[int, tuple[Sequence[Load], Callable[[], float]]] = {}
        self._last = 0

    @contextmanager
    def bring(self, loads: Sequence[Load], left: Callable[[], float]) -> Iterator[int]:
        """Count these for the length of a `with`; its number. `left` says which part of them is still to come, 0..1."""
        self._last += 1
        number = self._last
        self._under_way[number] = (tuple(loads), left)
        try:
            yield number
        finally:
            del self._under_way[number]

    def before(self, number: int | None = None) -> Sequence[Load]:
        """What is still to come of those that began before this one; None: of all."""
        return [
            replace(load, size=int(load.size * min(1.0, max(0.0, left()))))
            for other, (loads, left) in tuple(self._under_way.items())
            if number is None or other < number
            for load in loads
        ]
