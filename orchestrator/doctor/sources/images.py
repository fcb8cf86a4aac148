"""The catalogue's images that this host's GPUs would run, with what each needs."""

from __future__ import annotations

from collections.abc import Iterator

from hosts.facts import HostFacts
from orchestrator import catalogue
from orchestrator.doctor.machine import ImageNeed


def images(facts: HostFacts) -> tuple[ImageNeed, ...]:
    """One entry for each image and GPU. No image is asked: what they need is in the catalogue."""
    return tuple(_needs(facts))


def _needs(facts: HostFacts) -> Iterator[ImageNeed]:
    for entry in catalogue.shipped().images:
        for gpu in facts.accelerators:
            if entry.vendor is not None and entry.serves(gpu.vendor, gpu.arch):
                yield ImageNeed(entry.name, entry.reference, gpu.vendor, gpu.pci, entry.cuda)
