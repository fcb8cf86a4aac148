"""Images in Podman's storage, as things that may go.

Outrider's are those that it built (by their label), that the catalogue or a model names, and that it is
told to have pulled. An image that has another name as well has been given it by somebody: it stays.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from containers import labels, references
from containers.embedded.image import LABEL_IMAGE, REPOSITORY
from containers.errors import ImageUnnamed
from containers.spec import ImageInfo, ImageUser
from orchestrator.housekeeping.claims import Claims, Named, full
from orchestrator.housekeeping.unused import Kind, Thing


def things(images: Sequence[ImageInfo], users: Sequence[ImageUser], claims: Claims, brought: Named) -> list[Thing]:
    """`brought` are the ids of images that were pulled here, each with the names it was pulled by. Pure."""
    return [_thing(image, users, claims, brought.get(image.id)) for image in images]


def _thing(image: ImageInfo, users: Sequence[ImageUser], claims: Claims, pulled: tuple[str, ...] | None) -> Thing:
    names = {full(name) for name in (*image.names, *image.digests)}
    wanted = [by for name in sorted(names) for by in claims.wanted_images.get(name, ())]
    used = [by for name in (image.id, *sorted(names)) for by in claims.used_images.get(name, ())]
    used += [_said(user) for user in users if user.image == image.id]
    built = LABEL_IMAGE in image.labels
    ours = built or pulled is not None or bool(wanted) or bool(names & claims.used_images.keys())
    if ours:
        own = {REPOSITORY, *(_repository(n) for n in pulled or ())}
        own |= {_repository(n) for n in names & (claims.wanted_images.keys() | claims.used_images.keys())}
        used += [f"the name {n}, which somebody gave it" for n in image.names if _repository(n) not in own]
        used += claims.image_jobs
    if wanted:  # what nothing names, no plan will be made of
        used += claims.unplanned
    return Thing(
        kind=Kind.IMAGE,
        key=image.id,
        name=", ".join(image.names or image.digests[:1]) or image.id.removeprefix("sha256:")[:12],
        why="unnamed" if not image.names else "superseded" if built else "not_named",
        size=image.size,
        ours=ours,
        used_by=tuple(dict.fromkeys(used)),
        wanted_by=tuple(dict.fromkeys(wanted)),
    )


def _repository(name: str) -> str:
    """A name without its tag or digest."""
    try:
        return references.parse(name).name
    except ImageUnnamed:
        return name


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
