"""Files of the store, as things that may go. Blocking.

A folder at the store's top that no model refers to goes as one; in one that is in use, each file of
weights does that nothing refers to. What is no file of weights and lies beside one stays with it.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from orchestrator.housekeeping.claims import Claims, Named
from orchestrator.housekeeping.unused import RESTED, Kind, Thing
from orchestrator.weights import shelf
from orchestrator.weights.choosing import Source
from orchestrator.weights.shelf import HUB, PARTIAL
from orchestrator.wheel_source import INCOMING

_WEIGHTS = (".gguf", ".safetensors")
_SPLIT = re.compile(r"^(?P<stem>.*)-\d{5}-of-\d{5}(?P<end>\.gguf|\.safetensors)$")


def things(store: Path, claims: Claims, now: float) -> list[Thing]:
    """Everything in the store that can be told apart. `now` is Unix seconds."""
    found: list[Thing] = []
    for entry in _entries(store):
        if entry.is_symlink():
            continue  # Outrider makes real files only: somebody put it there
        if entry.name == HUB:
            for folder in shelf.repositories(store):
                found += _repository(store, folder, claims, now)
            continue
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


def _repository(store: Path, folder: Path, claims: Claims, now: float) -> Iterator[Thing]:
    """What was pulled from one repository of a hub, commit by commit."""
    named = {s for s in (*claims.used_sources, *claims.wanted_sources) if _is_of(store, s, folder)}
    at = {source: shelf.pinned(store, source) for source in named}
    for commit in sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()):
        # where nothing says which commit is meant, it may be any
        sources = [source for source in named if at[source] in (commit.name, None)]
        used = _by(claims.used_sources, sources) or _around(claims.used_paths, commit)
        wanted = _by(claims.wanted_sources, sources)
        if used:
            yield from _commit(store, commit, sources, claims, now)
            continue
        thing = _leftover(commit, claims, now) if any(partials(commit)) else _weights(commit, claims, now)
        yield replace(
            thing, name=_repository_name(commit), why="no_pin" if named and not wanted else "no_model", wanted_by=wanted
        )


def _commit(store: Path, commit: Path, sources: list[Source], claims: Claims, now: float) -> Iterator[Thing]:
    """Single files of a commit that is in use: those that none of its models is made of."""
    held = [shelf.find(store, source) for source in sources]
    whole = {file for one in held if one is not None for file in one.files}
    for found in _inside(commit, claims, now):
        thing = replace(found, name=f"{_repository_name(commit)}: {Path(found.key).relative_to(commit)}")
        if thing.kind is Kind.PARTIAL:
            yield thing
        elif Path(thing.key) in whole or None in held or not held:  # one that is not whole yet may need any of them
            by = _by(claims.used_sources, sources) or thing.used_by
            yield replace(thing, used_by=by, wanted_by=() if by else _by(claims.wanted_sources, sources))
        else:
            yield thing


def _is_of(store: Path, source: Source, folder: Path) -> bool:
    return shelf.repository_folder(store, source.repository) == folder


def _by(claims: Mapping[Source, tuple[str, ...]], sources: Sequence[Source]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(by for source in sources for by in claims.get(source, ())))


def _around(paths: Named, folder: Path) -> tuple[str, ...]:
    """What refers to this path, to anything in it, or to a folder that it is in."""
    own = [by for parent in folder.parents for by in paths.get(str(parent), ())]
    return _claimed(paths, folder) or tuple(own)


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


def _repository_name(commit: Path) -> str:
    """What people call the folder of a commit."""
    return f"{commit.parent.name.replace('--', '/', 1)} at {commit.name[:12]}"


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
    """Bytes on the disk that the removal of a file or folder gives back: one with another name elsewhere gives none."""
    seen: dict[tuple[int, int], tuple[int, int, int]] = {}
    for each in _all(path):
        try:
            info = each.lstat()
        except OSError:
            continue
        file = (info.st_dev, info.st_ino)
        names = seen[file][0] + 1 if file in seen else 1
        elsewhere = 0 if stat.S_ISDIR(info.st_mode) else info.st_nlink
        seen[file] = (names, elsewhere, info.st_blocks * 512)
    return sum(size for names, links, size in seen.values() if names >= links)


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
