"""Which weights a plan launches: a digest of samples of their files. Blocking.

Reading 20 GB to name them would take longer than the load. Small files count whole; of large ones the head (where a
format keeps its tables), the end and pieces spread between, together with names and sizes. Two files that differ only
elsewhere are taken for the same, which a canary then finds.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from orchestrator.plan import Plan
from orchestrator.runtimes import adapter

WHOLE = 8 << 20
PIECE = 1 << 16
PIECES = 16
MOST_FILES = 512
_SPLIT = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")
_NO_WEIGHTS = (".md", ".txt", ".png", ".jpg", ".gitattributes")


def target(plan: Plan) -> Path | None:
    """Where the weights lie on this host; None where no mount of the plan leads there."""
    inside = adapter(plan.runtime).scoring.target(plan.argv)
    if inside is None:
        return None
    for mount in plan.mounts:
        if Path(inside).is_relative_to(mount.target):
            return Path(mount.source, Path(inside).relative_to(mount.target))
    return None


def digest(plan: Plan) -> str | None:
    """The digest (hex) of the weights that a plan launches; None where they cannot be read."""
    where = target(plan)
    if where is None:
        return None
    found = hashlib.sha256()
    try:
        files = list(_files(where))
        for name, path in files[:MOST_FILES]:
            _take(found, name, path)
    except OSError:
        return None
    return found.hexdigest() if files else None


def _files(where: Path) -> Iterator[tuple[str, Path]]:
    """Names and files: all of a folder, all parts of a split GGUF, or the one file. A file's own name says nothing."""
    if where.is_dir():
        for name in sorted(os.listdir(where)):
            path = where / name
            if path.is_file() and not name.startswith(".") and not name.endswith(_NO_WEIGHTS):
                yield name, path
        return
    split = _SPLIT.search(where.name)
    if split is None:
        yield "", where
        return
    stem = where.name[: split.start()]
    for number in range(1, min(int(split[1]), MOST_FILES) + 1):
        yield str(number), where.with_name(f"{stem}-{number:05d}-of-{split[1]}.gguf")


def _take(found: hashlib._Hash, name: str, path: Path) -> None:
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        found.update(f"{name}\0{size}\0".encode())
        if size <= WHOLE:
            while piece := file.read(1 << 20):
                found.update(piece)
            return
        for number in range(PIECES):
            file.seek((size - PIECE) * number // (PIECES - 1))
            found.update(file.read(PIECE))
