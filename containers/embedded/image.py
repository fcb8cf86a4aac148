"""The embedded engine's image: made on this machine, from a pinned wheel, without a registry.

The image holds the system's Python with its standard library, the `xllamacpp` wheel, the
launcher and their shared libraries (about 64 MB where `strip` is there, 144 MB else). It is
deterministic: the same inputs give the same image id, and the digest of the inputs is both a
label and the tag, so an image that is in storage already is not built again.

Building (`build_archive`) and loading are separate; `ensure_image` is both with the shortcut.
"""

from __future__ import annotations

import asyncio
import platform
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from containers.embedded import archive, rootfs, wheel
from containers.embedded.errors import ImageBuildFailed
from containers.embedded.rootfs import Copy, Text, Tree
from containers.spec import ImageInfo

REPOSITORY = "localhost/outrider/llama-cpu"
LABEL_IMAGE = "io.outrider.image"
LABEL_INPUTS = "io.outrider.image.inputs"
ENTRYPOINT = "/app/llama-server"
FORMAT = "1"
"""Goes into the digest of the inputs: raise it when the way of building changes the result."""
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}

Progress = Callable[[str], None]

_SOURCES = ("options.py", "selftest.py", "launcher.py")
_SCRIPT = b"""#!/usr/bin/python3 -sEB
import sys

from containers.embedded.launcher import main

sys.exit(main(sys.argv[1:]))
"""


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """An archive ready to load. `image_id` is `sha256:...`, `name` is repository and tag."""

    archive: Path
    image_id: str
    inputs_digest: str
    name: str


@dataclass(frozen=True, slots=True)
class Recipe:
    """What an image is made of, before anything is written.

    `strip` lists the tree's paths of which the symbols are dropped when `strip` is there.
    """

    kind: str
    tree: Tree
    strip: tuple[str, ...]
    strip_version: str | None
    env: dict[str, str]
    inputs_digest: str

    @property
    def name(self) -> str:
        return f"{REPOSITORY}:{self.inputs_digest[:12]}"


class ImageStore(Protocol):
    """The part of `containers.podman.Podman` that is needed here."""

    async def image(self, ref: str) -> ImageInfo | None: ...

    async def load_image(self, archive: Path) -> ImageInfo: ...

    async def tag(self, ref: str, repository: str, tag: str) -> None: ...


def recipe(kind: str, tree: Tree, *, strip: tuple[str, ...] = (), env: dict[str, str] | None = None) -> Recipe:
    """A recipe with the digest of its inputs: every file's name, mode and content, and `strip`'s version."""
    version = rootfs.strip_version() if strip else None
    variables = {"PATH": "/app:/usr/bin:/bin"} | (env or {})
    words = [FORMAT, kind, f"strip={version}", *strip, *(f"{key}={variables[key]}" for key in sorted(variables))]
    return Recipe(kind, tree, strip, version, variables, rootfs.digest(tree, *words))


def wheel_recipe(source: wheel.Wheel, cache: Path, *, python: Path | None = None) -> Recipe:
    """The recipe of the engine made of the wheel; `cache` keeps the unpacked wheel.

    `python` is the interpreter to put into the image, the system's by default.
    Raises `ImageBuildFailed`.
    """
    unpacked = wheel.unpack(source, cache)
    interpreter = rootfs.interpreter(rootfs.SYSTEM_PYTHON if python is None else python)
    tree = rootfs.skeleton() | rootfs.python_tree(interpreter)
    big: list[str] = []
    for path in sorted(unpacked.rglob("*")):
        if not path.is_file() or "__pycache__" in path.parts or path.name == "RECORD":
            continue
        inside = f"/app/{path.relative_to(unpacked)}"
        tree[inside] = Copy(path, 0o755 if path.suffix == ".so" else 0o644)
        if path.suffix == ".so":
            big.append(inside)
    if not big:
        raise ImageBuildFailed(f"{source.path} holds no library")
    tree |= rootfs.libraries(rootfs.shared_objects(tree))
    here = Path(__file__).parent
    for name in _SOURCES:
        tree[f"/app/containers/embedded/{name}"] = Text((here / name).read_bytes())
    for name in ("/app/containers/__init__.py", "/app/containers/embedded/__init__.py"):
        tree[name] = Text(b"")
    tree[ENTRYPOINT] = Text(_SCRIPT, 0o755)
    return recipe("llama-cpu", tree, strip=tuple(big))


def write(what: Recipe, destination: Path, *, progress: Progress | None = None) -> BuiltImage:
    """Write a recipe's archive to the file `destination`. Raises `ImageBuildFailed`."""
    say = progress or (lambda _line: None)
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".image-", dir=destination.parent) as folder:
            scratch = Path(folder)
            tree = what.tree if what.strip_version is None else _stripped(what, scratch, say)
            say(f"writing {len(tree)} files")
            layer = archive.write_layer(tree, scratch / "layer.tar")
            config = archive.configuration(
                layer,
                architecture=ARCHITECTURES.get(platform.machine(), platform.machine()),
                entrypoint=[ENTRYPOINT],
                env=what.env,
                labels={LABEL_IMAGE: what.kind, LABEL_INPUTS: what.inputs_digest},
            )
            image_id = archive.write_image(scratch / "layer.tar", layer, config, what.name, scratch / "image.tar")
            (scratch / "image.tar").replace(destination)
    except OSError as error:
        raise ImageBuildFailed(f"cannot write {destination}: {error}") from error
    return BuiltImage(destination, image_id, what.inputs_digest, what.name)


def _stripped(what: Recipe, scratch: Path, say: Progress) -> Tree:
    tree = dict(what.tree)
    for number, name in enumerate(what.strip):
        entry = tree[name]
        assert isinstance(entry, Copy), f"{name} is no copy of a file"
        say(f"stripping {name}")
        target = scratch / f"stripped-{number}"
        rootfs.run(["strip", "--strip-unneeded", "-o", str(target), str(entry.source)])
        tree[name] = Copy(target, entry.mode)
    return tree


def build_archive(
    destination: Path,
    *,
    wheel: Path | None = None,
    cache: Path | None = None,
    python: Path | None = None,
    progress: Progress | None = None,
) -> BuiltImage:
    """Build the engine's image as an archive in the file `destination`.

    `wheel` is a wheel file; without it the pinned one is fetched into `cache`, which also keeps
    it unpacked (the folder of `destination` by default). `python` is the interpreter for the
    image, the system's by default. Takes about 3 s. Raises `ImageBuildFailed`.
    """
    folder = destination.parent if cache is None else cache
    return write(_recipe_of(wheel, folder, python, progress), destination, progress=progress)


def _recipe_of(path: Path | None, cache: Path, python: Path | None, progress: Progress | None) -> Recipe:
    if progress is not None:
        progress("looking at the wheel, Python and their libraries")
    source = wheel.fetch(cache) if path is None else wheel.given(path)
    return wheel_recipe(source, cache, python=python)


async def ensure_image(
    store: ImageStore, cache: Path, *, wheel: Path | None = None, progress: Progress | None = None
) -> ImageInfo:
    """The engine's image in Podman's storage, built and loaded only when it is not there yet.

    An image with the digest of the same inputs is taken as it is (about half a second to find
    out). Raises `ImageBuildFailed` and the errors of `containers.podman`.
    """
    what = await asyncio.to_thread(_recipe_of, wheel, cache, None, progress)
    return await ensure(store, what, cache, progress=progress)


async def ensure(store: ImageStore, what: Recipe, cache: Path, *, progress: Progress | None = None) -> ImageInfo:
    """`ensure_image` for any recipe. The image is tagged `latest` as well: plans name it so."""
    found = await store.image(what.name)
    if found is not None and found.labels.get(LABEL_INPUTS) == what.inputs_digest:
        await store.tag(found.id, REPOSITORY, "latest")
        return found
    with tempfile.TemporaryDirectory(prefix="load-", dir=cache) as folder:
        built = await asyncio.to_thread(write, what, Path(folder) / "image.tar", progress=progress)
        if progress is not None:
            progress(f"loading {built.name}")
        loaded = await store.load_image(built.archive)
    if loaded.id.removeprefix("sha256:") != built.image_id.removeprefix("sha256:"):
        raise ImageBuildFailed(f"Podman made {loaded.id} of the image {built.image_id}")
    await store.tag(loaded.id, REPOSITORY, "latest")
    return loaded
