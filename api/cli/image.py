"""`outrider image build|pull|pin|ls|rm`: what engines run from. Building needs no daemon, the rest does."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.options import Json, common
from api.cli.output import amount, print_json, print_table, say, ticker
from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from containers.podman import Podman
    from containers.spec import ImageInfo
    from orchestrator.paths import Paths

PODMAN = 30.0
"""Seconds for Podman to answer."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")

image_app = typer.Typer(no_args_is_help=True, help="Build, pull, pin, list and remove engine images.")


ImageName = Annotated[
    str,
    typer.Argument(
        metavar="IMAGE",
        help="A reference such as ghcr.io/owner/name:tag, or a name of the catalogue.",
        show_default=False,
    ),
]


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
        say(f"{info.names[0] if info.names else info.id}  {amount(info.size)}")


@image_app.command("ls")
def list_(ctx: typer.Context, as_json: Json = False) -> None:
    """List the images that are here for engines, and those of the catalogue that are not."""
    from api.cli.client import Client

    with Client(common(ctx).paths) as client:
        found = client.get("/images", timeout=60)
    if as_json:
        print_json(found)
        return
    print_table(
        ("IMAGE", "ID", "SIZE", "PINNED", "USED BY", "NEEDS"),
        [
            (
                view["reference"],
                _short(view["id"]) if view["id"] else "not here",
                amount(view["size"]),
                _short(view["pinned"]["digest"]) if view["pinned"] else "-",
                ", ".join(view["used_by"]) or "-",
                needs(view["needs"]),
            )
            for view in found
        ],
        empty="no images: `outrider image build cpu` builds one",
    )


@image_app.command()
def pull(
    ctx: typer.Context,
    image: ImageName,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Show progress until it is here.")] = True,
    as_json: Json = False,
) -> None:
    """Pull an image from its registry. Ctrl-C cancels the pull."""
    from api.cli.client import Client
    from api.cli.library import follow_job

    with Client(common(ctx).paths) as client:
        job = client.call("POST", "/images/pull", body={"image": image}, timeout=60)
        if wait:
            with ticker(f"{image}: pulling") as shown:
                job = follow_job(client, job, shown, cancelled="cancelled; what came so far was removed")
    if as_json:
        print_json(job)
    elif wait:
        say(job["detail"])
    else:
        say(f"pulling {image}: job {job['id']}; `outrider image pull {image}` shows how far it is")


@image_app.command()
def pin(
    ctx: typer.Context,
    image: ImageName,
    *,
    digest: Annotated[
        str | None, typer.Option("--digest", metavar="sha256:...", help="This digest instead of the present one.")
    ] = None,
    unpin: Annotated[bool, typer.Option("--unpin", help="Forget the pin.")] = False,
    as_json: Json = False,
) -> None:
    """Say that an image's name means one digest from now on: what its registry has under it now, or `--digest`."""
    from api.cli.client import Client

    if unpin and digest is not None:
        raise UsageError("--unpin and --digest exclude each other", hint="give one of them")
    if digest is not None and not _DIGEST.fullmatch(digest):
        raise UsageError(
            f"{digest!r} is no digest: sha256: and 64 hexadecimal digits",
            hint=f"`outrider image pin {image}` without --digest takes the present one",
        )
    with Client(common(ctx).paths) as client:
        if unpin:
            client.call("DELETE", "/images/pin", params={"image": image})
            document = {"reference": image, "pinned": None}
        else:
            document = client.call("PUT", "/images/pin", body={"image": image, "digest": digest}, timeout=90)
    if as_json:
        print_json(document)
    elif unpin:
        say(f"{image} is no longer pinned")
    else:
        say(f"{document['reference']} is pinned to {document['digest']}")


@image_app.command()
def rm(
    ctx: typer.Context,
    image: ImageName,
    force: Annotated[bool, typer.Option("--force", help="Remove one that is pinned, and its pin.")] = False,
    as_json: Json = False,
) -> None:
    """Remove an image. Refused while a deployment uses it."""
    from api.cli.client import Client

    with Client(common(ctx).paths) as client:
        params = {"image": image, "force": "true" if force else "false"}
        view = client.call("DELETE", "/images", params=params, timeout=120)
    if as_json:
        print_json(view)
    else:
        say(f"removed {view['reference']}  {amount(view['size'])}")


def needs(view: Mapping[str, Any] | None) -> str:
    """What an image needs of a host, in a few words."""
    if view is None:
        return "-"
    parts = [
        view["vendor"] or "CPU",
        *view["machine"],
        f"driver {view['driver']}" if view["driver"] else "",
        f"CUDA {view['cuda']}" if view["cuda"] else "",
        f"kernel {view['kernel']}" if view["kernel"] else "",
    ]
    return ", ".join(part for part in parts if part)


def _short(digest: str) -> str:
    return digest.removeprefix("sha256:")[:12]


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
