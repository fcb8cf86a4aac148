"""An existing Hugging Face cache: what it has is used, not fetched again and not copied.

On the store's file system a file is hard-linked. A user's own model files are copied instead, since a
link would change with the file it shares; the cache's files are named after their content and never
written again, and the digest is checked before the link is made. Deleting the cache later leaves the
link as it is. On another file system the cache's repository is mounted as it stands: its snapshots are
symbolic links into its blobs, so the mount is at the repository's root. Partial files of the library's
(`*.incomplete`) are its own and are left alone. All functions block.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.weights.hub import HubFile
from orchestrator.weights.partial import CHUNK
from orchestrator.weights.token import hub_home

_NO_LINK = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.EACCES})


def cache_folder(named: str | None, environ: Mapping[str, str] | None = None) -> Path:
    """The cache that counts: `[hub] cache`, else where the library keeps its own."""
    env = os.environ if environ is None else environ
    for text in (named, env.get("HF_HUB_CACHE"), env.get("HUGGINGFACE_HUB_CACHE")):
        if text:
            return Path(text).expanduser()
    return hub_home(env) / "hub"


@dataclass(frozen=True, slots=True)
class Cached:
    """One file that the cache has: `blob` is the real file, `inside` whether it lies in the repository's own folder
    and has its name in the commit's snapshot."""

    file: HubFile
    blob: Path
    inside: bool


def look(cache: Path, repository: str, commit: str, files: Sequence[HubFile]) -> dict[str, Cached]:
    """What the cache has of these files, in their size and readable for everybody (an engine is another user)."""
    root = repository_of(cache, repository)
    found = {}
    for file in files:
        named = root / "snapshots" / commit / file.path
        digest = file.sha256 or file.git_sha1 or "-"
        for place in (named, root / "blobs" / digest):
            blob = _real(place, cache, file.size)
            if blob is not None:
                inside = place is named and blob.is_relative_to(root.resolve())
                found[file.path] = Cached(file, blob, inside)
                break
    return found


def repository_of(cache: Path, repository: str) -> Path:
    """A repository's folder in the cache."""
    return cache / f"models--{repository.replace('/', '--')}"


def _real(place: Path, cache: Path, size: int) -> Path | None:
    try:
        real = place.resolve(strict=True)
        info = real.stat()
    except (OSError, RuntimeError):
        return None
    usable = stat.S_ISREG(info.st_mode) and info.st_size == size and info.st_mode & stat.S_IROTH
    return real if usable and real.is_relative_to(cache.resolve()) else None


def same_file_system(cache: Path, store: Path) -> bool:
    """Whether hard links can go from one to the other, as far as that can be told without one."""
    try:
        return cache.stat().st_dev == store.stat().st_dev
    except OSError:
        return False


def digest(file: HubFile, place: Path, go_on: Callable[[int], None]) -> str | None:
    """The SHA-256 of what lies there, if it is that file; None when it is not, or cannot be read.

    `go_on` is told each piece's bytes, and may raise to end it.
    """
    sha256 = hashlib.sha256()
    sha1 = hashlib.sha1(f"blob {file.size}\0".encode(), usedforsecurity=False)
    try:
        with place.open("rb", buffering=0) as stream:
            while piece := stream.read(CHUNK):
                sha256.update(piece)
                if file.sha256 is None:
                    sha1.update(piece)
                go_on(len(piece))
    except OSError:
        return None
    got = sha256.hexdigest()
    right = got == file.sha256 if file.sha256 is not None else sha1.hexdigest() == file.git_sha1
    return got if right else None


def link(real: Path, to: Path) -> bool:
    """Give a file a second name in the store. False where that cannot be; raises other OSErrors."""
    to.parent.mkdir(parents=True, exist_ok=True)
    temporary = to.with_name(f".{to.name}.link")
    temporary.unlink(missing_ok=True)
    try:
        os.link(real, temporary, follow_symlinks=False)
    except OSError as error:
        if error.errno in _NO_LINK:
            return False
        raise
    temporary.replace(to)
    temporary.unlink(missing_ok=True)  # where both names were the same file already, replace leaves the old one
    return True
