"""Images in Podman's storage, as things that may go.

Outrider's are those that it built (by their label), that the catalogue or a model names, and that it is
told to have pulled. An image that has another name as well has been given it by somebody: it stays.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from containers import labels
from containers.embedded.image import LABEL_IMAGE, REPOSITORY
from containers.spec import ImageInfo, ImageUser
from orchestrator.housekeeping.claims import Claims, Named, full
from orchestrator.housekeeping.unused import Kind, Thing


def things(images: Sequence[ImageInfo], users: Sequence[ImageUser], claims: Claims, brought: Named) -> list[Thing]:
    """`brought` are the ids of images that were pulled here, each with the names it was pulled by. Pure."""
    return [_thing(image, users, claims, brought.get(image.id)) for image in images]


def _thing(image: ImageInfo, users: Sequence[ImageUser], claims: Claims, pulled: tuple[str, ...] | None) -> Thing:
    built = LABEL_IMAGE in image.labels
    named = {name for name in image.names if full(name) in claims.wanted_images}
    ours = built or pulled is not None or bool(named)
    own = named | {full(name) for name in pulled or ()} | {n for n in image.names if n.startswith(f"{REPOSITORY}:")}
    used = [*claims.used_images.get(image.id, ()), *(_said(user) for user in users if user.image == image.id)]
    for name in image.names:
        used += claims.used_images.get(name, ())
    if ours:
        used += [f"the name {name}, which somebody gave it" for name in image.names if name not in own]
        used += claims.image_jobs
    wanted = [by for name in image.names for by in claims.wanted_images.get(full(name), ())]
    if wanted:  # what nothing names, no plan will be made of
        used += claims.unplanned
    return Thing(
        kind=Kind.IMAGE,
        key=image.id,
        name=", ".join(image.names) or image.id.removeprefix("sha256:")[:12],
        why="unnamed" if not image.names else "superseded" if built else "not_named",
        size=image.size,
        ours=ours,
        used_by=tuple(dict.fromkeys(used)),
        wanted_by=tuple(dict.fromkeys(wanted)),
    )


def _said(user: ImageUser) -> str:
    owner = user.labels.get(labels.OWNER)
    return f"container {user.name}" + ("" if owner is None else f" (owner {owner})")


def volumes_of(users: Sequence[ImageUser]) -> Named:
    """The compile caches that other containers were started with, by their own plans' word."""
    found: dict[str, list[str]] = {}
    for user in users:
        try:
            plan: Mapping[str, object] = json.loads(user.labels.get(labels.PLAN_JSON, "{}"))
            caches = plan.get("caches")
        except (ValueError, AttributeError):
            continue
        for entry in caches if isinstance(caches, list) else ():
            if isinstance(entry, list) and entry and isinstance(entry[0], str):
                found.setdefault(entry[0], []).append(_said(user))
    return {name: tuple(by) for name, by in found.items()}
