"""The catalogue's images that were built for this host's GPUs, and whether the host is what each needs."""

from __future__ import annotations

from collections.abc import Iterator

from hosts.facts import HostFacts
from orchestrator import catalogue
from orchestrator.doctor.machine import ImageNeed
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
