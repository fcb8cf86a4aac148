"""Images: /images. References hold slashes, so they come in the query or the body."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Response

from api.control.deps import Author, Daemon
from api.control.documents import PinBody, PullBody
from api.control.problems import documented
from orchestrator.views import ImageView, JobView, PinView

router = APIRouter(prefix="/api/v1/images", tags=["images"])

Named = Annotated[
    str,
    Query(
        description="A reference such as `ghcr.io/owner/name:tag`, an image's id, or its name in the catalogue.",
        min_length=1,
        max_length=512,
    ),
]


@router.get("", operation_id="listImages", summary="All images", responses=documented(401, 503))
async def images(daemon: Daemon) -> Sequence[ImageView]:
    """Images that are here for engines, under each of their names, and those of the catalogue that are not here."""
    return await daemon.images()


@router.post(
    "/pull",
    operation_id="pullImage",
    summary="Pull an image",
    status_code=202,
    responses=documented(400, 401, 409, 413, 415, 503, 507),
)
async def pull(daemon: Daemon, response: Response, body: PullBody, author: Author = "api") -> JobView:
    """The answer is a job; its address is in `Location`, and deleting it cancels the pull.

    An image that is being pulled already has one job for all who ask."""
    job = await daemon.pull_image(body.image, author=author)
    response.headers["location"] = f"/api/v1/jobs/{job.id}"
    return job


@router.put(
    "/pin",
    operation_id="pinImage",
    summary="Pin an image to a digest",
    responses=documented(400, 401, 403, 404, 409, 413, 415, 502, 503),
)
async def pin(daemon: Daemon, body: PinBody, author: Author = "api") -> PinView:
    """From then on plans mean this digest by the name. Without one, what the registry says now."""
    return await daemon.pin_image(body.image, body.digest, author=author)


@router.delete(
    "/pin", operation_id="unpinImage", summary="Forget a pin", status_code=204, responses=documented(400, 401, 404)
)
async def unpin(daemon: Daemon, image: Named, author: Author = "api") -> None:
    """Plans mean the tag again."""
    await daemon.unpin_image(image, author=author)


@router.delete("", operation_id="removeImage", summary="Remove an image", responses=documented(400, 401, 404, 409, 503))
async def remove(
    daemon: Daemon,
    image: Named,
    force: Annotated[bool, Query(description="Remove one that is pinned, and its pin.")] = False,
    author: Author = "api",
) -> ImageView:
    """What was removed. Refused while a deployment uses it, whatever `force` says."""
    return await daemon.remove_image(image, force=force, author=author)
