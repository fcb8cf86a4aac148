"""Files of the store, as things that may go. Blocking.

A folder at the store's top that no model refers to goes as one; in one that is in use, each file of
weights does that nothing refers to. What is no file of weights and lies beside one stays with it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from orchestrator.housekeeping.claims import Claims, Named
from orchestrator.housekeeping.unused import RESTED, Kind, Thing

PARTIAL = ".partial"
INCOMING = ".incoming-"
HUB = "hub"
_WEIGHTS = (".gguf", ".safetensors")
_SPLIT = re.compile(r"^(?P<stem>.*)-\d{5}-of-\d{5}(?P<end>\.gguf|\.safetensors)$")


def things(store: Path, claims: Claims, now: float) -> list[Thing]:
    """Everything in the store that can be told apart. `now` is Unix seconds."""
    found: list[Thing] = []
    for entry in _entries(store):
        if entry.is_symlink():
            continue  # Outrider makes real files only: somebody put it there
        if entry.name == HUB:
            continue  # has a book of its own
        if entry.name.startswith(INCOMING):
            found.append(_leftover(Path(entry.path), claims, now))
            continue
        path = Path(entry.path)
        used, wanted = _claimed(claims.used_paths, path), _claimed(claims.wanted_paths, path)
        if (used or wanted) and entry.is_dir(follow_symlinks=False):
            found += _inside(path, claims, now)
        elif not used and not wanted and path.suffix != ".json":
            # a folder with a file on its way is one that is gone on with, whatever else is in it
            found.append(_leftover(path, claims, now) if any(partials(path)) else _weights(path, claims, now))
    return found


def partials(folder: Path) -> Iterator[Path]:
    """Files on their way: this one, or those in this folder, however deep."""
    if folder.name.endswith(PARTIAL):
        yield folder
    for here, _, names in os.walk(folder):
        yield from (Path(here, name) for name in names if name.endswith(PARTIAL))


def _inside(folder: Path, claims: Claims, now: float) -> Iterator[Thing]:
    for here, _, names in os.walk(folder):
        for name in sorted(names):
            path = Path(here, name)
            if path.is_symlink():
                continue
            if name.endswith(PARTIAL):
                yield _leftover(path, claims, now)
            elif name.endswith(_WEIGHTS):
                yield _weights(path, claims, now)


def _weights(path: Path, claims: Claims, now: float) -> Thing:
    used, wanted = _needed(claims.used_paths, path), _needed(claims.wanted_paths, path)
    return Thing(
        kind=Kind.WEIGHTS,
        key=str(path),
        name=_name(path),
        why="no_model",
        size=tree_bytes(path),
        age=now - newest(path),
        used_by=used or claims.weights_jobs,
        wanted_by=wanted,
    )


def _leftover(path: Path, claims: Claims, now: float) -> Thing:
    return Thing(
        kind=Kind.PARTIAL,
        key=str(path),
        name=_name(path),
        why="left_over",
        size=tree_bytes(path),
        age=now - newest(path),
        used_by=claims.weights_jobs,
        rests=RESTED,
    )


def _name(path: Path) -> str:
    return "/".join(path.parts[-2:])


def _claimed(paths: Named, folder: Path) -> tuple[str, ...]:
    """What refers to this path or to anything in it."""
    own = str(folder)
    return tuple(dict.fromkeys(by for p, who in paths.items() if p == own or p.startswith(f"{own}/") for by in who))


def _needed(paths: Named, file: Path) -> tuple[str, ...]:
    """What refers to this path, to a folder that it is in, or to another part of the same split file."""
    whole = {str(file), *(str(parent) for parent in file.parents)}
    split = _SPLIT.match(file.name)
    for path, who in paths.items():
        other = _SPLIT.match(Path(path).name)
        together = split and other and (split["stem"], split["end"]) == (other["stem"], other["end"])
        if path in whole or (together and Path(path).parent == file.parent):
            return who
    return _claimed(paths, file)


def tree_bytes(path: Path) -> int:
    """Bytes on the disk of a file or folder; files with several names are counted once."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for each in _all(path):
        try:
            info = each.lstat()
        except OSError:
            continue
        if (info.st_dev, info.st_ino) not in seen:
            seen.add((info.st_dev, info.st_ino))
            total += info.st_blocks * 512
    return total


def newest(path: Path) -> float:
    """When something in it was last changed, in Unix seconds; 0 when that cannot be seen."""
    times = [0.0]
    for each in _all(path):
        try:
            times.append(each.lstat().st_mtime)
        except OSError:
            continue
    return max(times)


def _all(path: Path) -> Iterator[Path]:
    yield path
    if path.is_symlink():
        return
    for here, folders, files in os.walk(path):  # follows no link in it
        yield from (Path(here, name) for name in (*folders, *files))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except OSError:
        return []
