"""Writing a file system as an image archive, the same bytes for the same contents.

The archive is a docker-archive with one layer, which `podman load` and its API take. Names are
sorted, times are zero, everything belongs to root; the configuration is our own JSON. An image's
id is the digest of that configuration, which names the layer by digest: it changes with the
contents and with nothing else.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, cast

from containers.embedded.rootfs import Copy, Folder, Link, Text, Tree, with_parents

CREATED = "1970-01-01T00:00:00Z"


class _Hashing:
    """A file to write to that keeps a digest and a size."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        self._digest.update(data)
        self.size += len(data)
        return self._file.write(data)

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


def _member(name: str, kind: bytes, mode: int, size: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.size, info.mtime = kind, mode, size, 0
    return info


def write_layer(tree: Tree, path: Path) -> str:
    """Write the tree as a layer; its digest as `sha256:...`."""
    with path.open("wb") as file:
        sink = _Hashing(file)
        with tarfile.open(fileobj=cast(IO[bytes], sink), mode="w|", format=tarfile.GNU_FORMAT) as tar:
            for name, entry in with_parents(tree).items():
                inside = name.removeprefix("/")
                match entry:
                    case Folder(mode):
                        tar.addfile(_member(f"{inside}/", tarfile.DIRTYPE, mode))
                    case Link(target):
                        info = _member(inside, tarfile.SYMTYPE, 0o777)
                        info.linkname = target
                        tar.addfile(info)
                    case Text(content, mode):
                        tar.addfile(_member(inside, tarfile.REGTYPE, mode, len(content)), io.BytesIO(content))
                    case Copy(source, mode):
                        with source.open("rb") as content_file:
                            size = source.stat().st_size
                            tar.addfile(_member(inside, tarfile.REGTYPE, mode, size), content_file)
    return f"sha256:{sink.hexdigest()}"


def configuration(
    layer: str, *, architecture: str, entrypoint: list[str], env: Mapping[str, str], labels: Mapping[str, str]
) -> bytes:
    """The image's configuration; its sha256 is the image's id."""
    value = {
        "architecture": architecture,
        "config": {
            "Entrypoint": entrypoint,
            "Env": [f"{key}={env[key]}" for key in sorted(env)],
            "Labels": dict(sorted(labels.items())),
            "StopSignal": "SIGTERM",
            "WorkingDir": "/",
        },
        "created": CREATED,
        "history": [{"created": CREATED, "created_by": "outrider"}],
        "os": "linux",
        "rootfs": {"diff_ids": [layer], "type": "layers"},
    }
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def write_image(layer_file: Path, layer: str, config: bytes, name: str, destination: Path) -> str:
    """Put layer and configuration into one archive under `name`; the image's id as `sha256:...`."""
    image_id = hashlib.sha256(config).hexdigest()
    inner = f"{layer.removeprefix('sha256:')}.tar"
    manifest = json.dumps([{"Config": f"{image_id}.json", "Layers": [inner], "RepoTags": [name]}]).encode()
    with tarfile.open(destination, "w", format=tarfile.GNU_FORMAT) as tar:
        for file_name, data in ((f"{image_id}.json", config), ("manifest.json", manifest)):
            tar.addfile(_member(file_name, tarfile.REGTYPE, 0o644, len(data)), io.BytesIO(data))
        with layer_file.open("rb") as file:
            tar.addfile(_member(inner, tarfile.REGTYPE, 0o644, layer_file.stat().st_size), file)
    return f"sha256:{image_id}"
