"""`outrider image build|ls`: the embedded engine's image, made on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.options import Json, common
from api.cli.output import print_json, print_table, say, size, ticker
from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from containers.podman import Podman
    from containers.spec import ImageInfo
    from orchestrator.paths import Paths

PODMAN = 30.0
"""Seconds for Podman to answer."""

image_app = typer.Typer(no_args_is_help=True, help="Build and list engine images; needs no daemon.")


class Which(StrEnum):
    """Images that can be built here."""

    CPU = "cpu"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(image_app, name="image")


@image_app.command()
def build(  # noqa: PLR0917 - options have names on a command line
    ctx: typer.Context,
    which: Annotated[Which, typer.Argument(help="cpu: llama.cpp for the CPU, from its Python wheel.")],
    wheel: Annotated[
        Path | None, typer.Option("--wheel", metavar="FILE", help="This wheel instead of the pinned one.")
    ] = None,
    from_source: Annotated[
        Path | None,
        typer.Option(
            "--from-source",
            metavar="FOLDER",
            exists=True,
            file_okay=False,
            help="Build llama-server from this llama.cpp source tree instead; kept, so that it is built once.",
        ),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Compiler processes of a build from source.")] = 1,
    as_json: Json = False,
) -> None:
    """Build an engine's image and load it into Podman; one that is there already is not built again."""
    assert which is Which.CPU
    if wheel is not None and from_source is not None:
        raise UsageError("--wheel and --from-source exclude each other", hint="give one of them")
    paths = prepared(common(ctx).paths)
    with ticker("podman: looking for its API") as shown:

        def progress(line: str) -> None:
            shown.update(f"image: {line}")

        if from_source is None:
            info = asyncio.run(_build(paths, wheel, progress))
        else:
            info = asyncio.run(_build_from_source(paths, from_source, jobs, progress))
    if as_json:
        print_json(_document(info))
    else:
        say(f"{info.names[0] if info.names else info.id}  {size(info.size)}")


@image_app.command("ls")
def list_(ctx: typer.Context, as_json: Json = False) -> None:
    """List the images that were built here."""
    found = asyncio.run(_list(prepared(common(ctx).paths)))
    if as_json:
        print_json([_document(info) for info in found])
        return
    print_table(
        ("IMAGE", "ID", "SIZE"),
        [
            (name, info.id.removeprefix("sha256:")[:12], size(info.size))
            for info in found
            for name in info.names or ("-",)
        ],
        empty="no images: `outrider image build cpu` builds one",
    )


def prepared(paths: Paths) -> Paths:
    """The folders, made if need be: a build needs its cache and Podman's socket a place."""
    from orchestrator.paths import prepare

    return prepare(paths)


async def _build(paths: Paths, wheel: Path | None, progress: Callable[[str], None]) -> ImageInfo:
    async with podman_of(paths) as podman:
        return await ensure_embedded(podman, paths, progress, wheel=wheel)


async def _build_from_source(paths: Paths, tree: Path, jobs: int, progress: Callable[[str], None]) -> ImageInfo:
    from containers.embedded import image, source

    binary = await asyncio.to_thread(source.build_binary, tree, paths.cache, jobs=jobs, progress=progress)
    recipe = await asyncio.to_thread(source.binary_recipe, binary)
    async with podman_of(paths) as podman:
        return await image.ensure(podman, recipe, paths.cache, progress=progress)


async def ensure_embedded(
    podman: Podman, paths: Paths, progress: Callable[[str], None], *, wheel: Path | None = None
) -> ImageInfo:
    """The embedded engine's image, built when it is not there; `progress` gets a line a step."""
    from containers.embedded.image import ensure_image

    return await ensure_image(podman, paths.cache, wheel=wheel, progress=progress)


async def _list(paths: Paths) -> tuple[ImageInfo, ...]:
    from containers.embedded.image import LABEL_IMAGE

    async with podman_of(paths) as podman:
        return await podman.images(label=LABEL_IMAGE)


@asynccontextmanager
async def podman_of(paths: Paths) -> AsyncIterator[Podman]:
    """Podman for the length of a `with`: a service that had to be started for it is ended again."""
    from containers import service
    from containers.podman import Podman
    from orchestrator.config import load

    before = service.running(paths.run_dir)
    found = await service.ensure(paths.run_dir, socket=load(paths).podman.socket, limit=PODMAN)
    podman = Podman(found.socket, call_timeout=PODMAN)
    try:
        yield podman
    finally:
        await podman.close()
        if found.own and before is None:
            await found.stop()


def _document(info: ImageInfo) -> dict[str, object]:
    return {
        "id": info.id,
        "names": list(info.names),
        "digest": info.digest,
        "size": info.size,
        "labels": dict(info.labels),
    }
