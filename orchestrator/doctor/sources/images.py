"""The catalogue's images: whether this host is what each needs, and what those that are here set for themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator

from hosts.facts import HostFacts
from orchestrator import catalogue
from orchestrator.doctor.machine import ImageNeed, Setting
from orchestrator.doctor.sources.look import Look, Unseen
from orchestrator.doctor.sources.network import WATCHED
from orchestrator.image_needs import unmet


def images(facts: HostFacts) -> tuple[ImageNeed, ...]:
    """One entry for each image and GPU. No image is asked: what they need is in the catalogue."""
    return tuple(_needs(facts))


def _needs(facts: HostFacts) -> Iterator[ImageNeed]:
    for entry in catalogue.shipped().images:
        for gpu in facts.accelerators:
            if entry.vendor is None or not entry.serves(gpu.vendor, gpu.arch):
                continue
            lacks = unmet(entry, facts, gpu)
            if lacks is None:
                yield ImageNeed(entry.name, entry.reference, gpu.pci)
            else:
                yield ImageNeed(entry.name, entry.reference, gpu.pci, lacks.code, lacks.text, lacks.needed, lacks.found)


def settings(look: Look) -> tuple[Setting, ...]:
    """Watched variables that images of the catalogue bring, of those that are in Podman's storage."""
    wanted = {entry.reference for entry in catalogue.shipped().images if entry.vendor is not None}
    try:
        listed = json.loads(look.said("podman", "images", "--format", "json"))
        here = [str(image["Id"]) for image in listed if wanted & set(image.get("Names") or ())]
        if not here:
            return ()
        return tuple(_set(json.loads(look.said("podman", "image", "inspect", *here))))
    except (Unseen, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ()  # what an image sets is known when it is here and Podman answers


def _set(images: list[dict[str, object]]) -> Iterator[Setting]:
    for image in images:
        config, names = image.get("Config"), image.get("RepoTags")
        name = names[0] if isinstance(names, list) and names else str(image.get("Id"))
        env = config.get("Env") if isinstance(config, dict) else None
        for line in env if isinstance(env, list) else ():
            key, _, value = str(line).partition("=")
            if key in WATCHED:
                yield Setting(f"image {name}", key, value)
