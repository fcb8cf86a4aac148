"""What a Podman service that was killed in the middle of a pull leaves in its temporary folder, and sweeping it.

Podman puts the compressed layers into `storageNNN` there and removes it itself, also when a pull fails or
is cancelled; only a kill leaves it. Nothing in it says whose it was, and other programs (podman, buildah,
skopeo, of whomever) make folders of the same name. So one is removed only when no Podman service lives that
may have made it, no process at all has anything in it open, and nothing in it changed for a while (or whoever
sweeps saw it appear in a pull of ours).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from containers import proc

NAME = re.compile(r"^(storage|container_images_\w*-?)\d+$")
LOGINS = re.compile(r"^auth\.json\.\d+$")
_DEFAULTS = ("/var/tmp", "/tmp")  # noqa: S108 - where Podman goes without TMPDIR, not where we write
RESTED = 60.0
"""Seconds for which nothing may have changed: a folder that was made this moment has nothing open yet."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """A folder or file that a pull left; `size` is bytes on the disk."""

    path: Path
    size: int


def find(
    folder: Path,
    *,
    now: float,
    rested: float = RESTED,
    names: Collection[str] | None = None,
    root: Path = proc.PROC,
) -> tuple[Leftover, ...]:
    """What in this temporary folder belongs to nobody any more. Blocking.

    `now` is Unix seconds; `names` are the entries to look at, None for all. Only entries of this process's
    own user count, as the service is of the same.
    """
    candidates = []
    try:
        with os.scandir(folder) as listing:
            entries = list(listing)
    except OSError:
        return ()
    for entry in entries:
        try:
            info = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        mine = info.st_uid == os.getuid() and not stat.S_ISLNK(info.st_mode)
        named = NAME if stat.S_ISDIR(info.st_mode) else LOGINS
        if names is not None and entry.name not in names:
            continue
        if mine and named.match(entry.name) and _newest(Path(entry.path)) <= now - rested:
            candidates.append(Path(entry.path))
    if not candidates:
        return ()
    used = tuple(_open_files(folder, root))
    services = tuple(_services(folder, root))
    candidates = [c for c in candidates if not any(began <= _newest(c) for began in services)]
    return tuple(
        Leftover(path, _size(path))
        for path in sorted(candidates)
        if not any(name == str(path) or name.startswith(f"{path}/") for name in used)
    )


def sweep(
    folder: Path, *, now: float, rested: float = RESTED, names: Collection[str] | None = None
) -> tuple[Leftover, ...]:
    """Remove what `find` finds; what was removed. Blocking."""
    gone = []
    for leftover in find(folder, now=now, rested=rested, names=names):
        try:
            if leftover.path.is_dir():
                shutil.rmtree(leftover.path)
            else:
                leftover.path.unlink()
        except OSError:
            continue
        gone.append(leftover)
    return tuple(gone)


def entries(folder: Path) -> frozenset[str]:
    """The names in a temporary folder that a pull may have made. Blocking."""
    try:
        return frozenset(name for name in os.listdir(folder) if NAME.match(name) or LOGINS.match(name))
    except OSError:
        return frozenset()


def _newest(path: Path) -> float:
    """When anything in it changed last."""
    times = [0.0]
    for each in _all(path):
        try:
            times.append(each.lstat().st_mtime)
        except OSError:
            continue
    return max(times)


def _size(path: Path) -> int:
    total = 0
    for each in _all(path):
        try:
            total += each.lstat().st_blocks * 512
        except OSError:
            continue
    return total


def _all(path: Path) -> Iterator[Path]:
    yield path
    for here, folders, files in os.walk(path):
        for name in (*folders, *files):
            yield Path(here) / name


def _open_files(folder: Path, root: Path) -> Iterator[str]:
    """What processes have open below a folder."""
    start = f"{os.path.realpath(folder)}/"
    for pid in _pids(root):
        try:
            links = os.listdir(root / pid / "fd")
        except OSError:
            continue
        for link in links:
            with contextlib.suppress(OSError):
                name = os.readlink(root / pid / "fd" / link)
                if name.startswith(start):
                    yield f"{folder}/{name[len(start) :]}"


def _pids(root: Path) -> list[str]:
    return [name for name in os.listdir(root) if name.isdigit()]


def _services(folder: Path, root: Path) -> Iterator[float]:
    """When those Podman services began (Unix seconds) that may have this temporary folder."""
    # the kernel's own "btime" is in whole seconds, which is too coarse for a service that was killed a moment ago
    boot = time.clock_gettime(time.CLOCK_REALTIME) - time.clock_gettime(time.CLOCK_BOOTTIME)
    for pid in map(int, _pids(root)):
        words = proc.arguments(pid, root=root)
        if not words or Path(words[0]).name != "podman" or "service" not in words:
            continue
        found = proc.process(pid, root=root)
        if found is None or not found.alive:
            continue
        try:
            environ = (root / str(pid) / "environ").read_bytes().split(b"\0")
        except OSError:
            environ = []
        named = [x[7:].decode(errors="replace") for x in environ if x.startswith(b"TMPDIR=")]
        if any(os.path.realpath(x) == os.path.realpath(folder) for x in named or _DEFAULTS):
            yield boot + found.start / os.sysconf("SC_CLK_TCK")
