"""Compile caches, the state folder's cache and old logs, as things that may go. Blocking.

What is not known by its name is not ours to judge, and is left out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from containers.embedded.wheel import XLLAMACPP
from containers.spec import ImageInfo
from orchestrator.housekeeping.claims import Named
from orchestrator.housekeeping.unused import RESTED, Kind, Thing
from orchestrator.housekeeping.weights_here import newest, tree_bytes
from orchestrator.log_file import OLDER

VOLUMES = "outrider-"
_VOLUME = re.compile(r"outrider-[a-z0-9_]+-(?P<image>[0-9a-f]{12})-[A-Za-z0-9_.]+")
"""As `planner.building` names them: purpose, digest of the image's id or reference, architecture."""
_SCRATCH = re.compile(r"(fetch|load|unpack)-.*|\.image-.*|build-[0-9a-f]{16}|llama-server-[0-9a-f]{16}\.part")
_BUILT = re.compile(r"llama-server-[0-9a-f]{16}")
_UNPACKED = re.compile(r"unpacked-[0-9a-f]{16}")


def volumes(folders: Mapping[str, str], images: Sequence[ImageInfo], used: Sequence[Named], now: float) -> list[Thing]:
    """Compile caches: `folders` are Podman's volumes by name, `used` those that somebody needs."""
    names = {key: image for image in images for key in _keys(image)}
    found = []
    for volume, folder in folders.items():
        match = _VOLUME.fullmatch(volume)
        if match is None:
            continue
        image = names.get(match["image"])
        by = tuple(dict.fromkeys(who for claims in used for who in claims.get(volume, ())))
        found.append(
            Thing(
                kind=Kind.CACHE,
                key=volume,
                name=f"volume {volume}",
                why="no_image" if image is None else "rebuildable",
                size=tree_bytes(Path(folder)),
                age=now - newest(Path(folder)),
                used_by=by,
                wanted_by=() if image is None else (f"image {', '.join(image.names) or image.id[:19]}",),
            )
        )
    return found


def _keys(image: ImageInfo) -> Iterable[str]:
    references = [image.id, *image.names, *(name.removesuffix(":latest") for name in image.names)]
    return (hashlib.sha256(reference.encode()).hexdigest()[:12] for reference in references)


def state_cache(cache: Path, now: float) -> list[Thing]:
    """What building the embedded engine's image keeps, and what builds that were cut off left."""
    pinned = {XLLAMACPP.file_name, f"unpacked-{XLLAMACPP.sha256[:16]}"}
    found = []
    for path in _inside(cache):
        wanted: tuple[str, ...] = ()
        rests = 0.0
        if _SCRATCH.fullmatch(path.name):
            why, rests = "left_over", RESTED
        elif path.name in pinned:
            why, wanted = "rebuildable", ("`outrider image build cpu`",)
        elif _BUILT.fullmatch(path.name):
            why, wanted = "rebuildable", ("`outrider image build cpu --from-source`",)
        elif path.suffix == ".whl" or _UNPACKED.fullmatch(path.name):
            why = "superseded"
        else:
            continue
        size, age = tree_bytes(path), now - newest(path)
        found.append(Thing(Kind.CACHE, str(path), f"cache/{path.name}", why, size, age, wanted_by=wanted, rests=rests))
    return found


def old_logs(folders: Iterable[Path], now: float) -> list[Thing]:
    """Logs that have been begun anew since."""
    return [
        Thing(Kind.LOG, str(path), f"logs/{path.name}", "old_log", tree_bytes(path), now - newest(path), rests=RESTED)
        for folder in folders
        for path in _inside(folder)
        if path.name.endswith(f".log{OLDER}") and path.is_file() and not path.is_symlink()
    ]


def _inside(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
