"""Where a candidate could run: devices, alone or several identical ones together, and images for them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hosts.facts import QUARANTINED, Accelerator, HostFacts
from orchestrator.catalogue.types import Catalogue, ImageEntry
from orchestrator.models import Variant
from orchestrator.planner.wishes import Preferences
from orchestrator.runtimes import ADAPTERS

Group = tuple[Accelerator, ...]
"""Devices that share a model, in the order of their PCI addresses; empty is the CPU."""
DEVICE_UNNAMED = "device_unnamed"
"""The code of a GPU that no container can be given (yet)."""
CUSTOM = "custom"
"""The name of an image that is none of the catalogue's."""
TOGETHER = (1, 2, 4, 8)
"""How many GPUs are tried when nobody says: attention heads can be shared by these in nearly every model."""


@dataclass(frozen=True, slots=True)
class Places:
    """What a host offers: one kind of device a group, and a code and a sentence about what cannot be used."""

    kinds: tuple[Group, ...]
    """Identical devices together; the CPU is an empty group."""
    unfit: tuple[tuple[str, str], ...] = ()

    def starts(self, together: int | None) -> tuple[Group, ...]:
        """Where to begin: the first device of each kind, or as many as are asked for."""
        return tuple(kind[: together or 1] for kind in self.kinds if len(kind) >= (together or 1) or not kind)

    def choices(self, group: Group, number: int) -> tuple[Group, ...]:
        """Groups of this many of the same kind as `group`: neighbours in PCI order, then those with most memory free.

        Only those that differ in the memory they have free, for the rest would give the same plan elsewhere.
        """
        kind = next((k for k in self.kinds if group and group[0] in k), ())
        if not group or len(kind) < number or (number > 1 and kind[0].unified):
            return () if group else ((),)
        neighbours = [kind[at : at + number] for at in range(0, len(kind) - number + 1, number)]
        emptiest = sorted(sorted(kind, key=_free, reverse=True)[:number], key=lambda d: d.pci)
        by_memory: dict[int, Group] = {}
        for choice in (*neighbours, tuple(emptiest)):
            by_memory.setdefault(min(_free(d) for d in choice), choice)
        first, most = next(iter(by_memory.values())), by_memory[max(by_memory)]
        return (first,) if first is most else (first, most)


def _free(device: Accelerator) -> int:
    return device.memory_free if device.memory_free is not None else device.memory_total or 0


def of_host(facts: HostFacts, wanted: ImageEntry | None) -> Places:
    """The accelerators that can be used, and about those that cannot, why.

    The CPU only where there is no accelerator, or when its image is asked for by name: a model
    that silently runs on the CPU of a GPU host is a bug that looks like slowness. A container that is
    given no device does just that, so a GPU without a name to give is none.
    """
    if not facts.accelerators or (wanted is not None and wanted.vendor is None):
        return Places(((),))
    gone = [d for d in facts.accelerators if d.details.get("health") == "lost"]
    held = [d for d in facts.accelerators if QUARANTINED in d.details and d not in gone]
    unnamed = [d for d in facts.accelerators if not d.devices and d not in gone]
    alive = [d for d in facts.accelerators if d not in gone and d not in unnamed and d not in held]
    why: list[tuple[str, str]] = []
    if gone:
        why.append(("device_lost", f"lost until the machine is restarted: {_listed(gone)}"))
    if held:
        why.append(("device_quarantined", f"left alone for now: {_listed(held)}: {held[0].details[QUARANTINED]}"))
    if unnamed:
        text = f"no container can be given {_listed(unnamed)}: it has no device node or CDI name"
        why.append((DEVICE_UNNAMED, text))
    kinds: dict[tuple[object, ...], list[Accelerator]] = {}
    for device in sorted(alive, key=lambda d: d.pci):
        kinds.setdefault((device.vendor, device.name, device.arch, device.memory_total, device.unified), []).append(
            device
        )
    return Places(tuple(tuple(kind) for kind in kinds.values()), tuple(why))


def _listed(devices: Sequence[Accelerator]) -> str:
    return ", ".join(f"{d.name or d.vendor} at {d.pci}" for d in devices)


def named_image(catalogue: Catalogue, wish: Preferences) -> ImageEntry | None:
    """The catalogue's image of the name or reference that was asked for."""
    if wish.image is None:
        return None
    return next((image for image in catalogue.images if wish.image in (image.name, image.reference)), None)


def images(
    catalogue: Catalogue, wish: Preferences, variant: Variant, runtimes: Sequence[str], group: Group
) -> Iterator[ImageEntry]:
    """The images that could run these weights there; one of the user's own is taken to be like the first of them."""
    vendor, arch = (group[0].vendor, group[0].arch) if group else (None, None)
    named = named_image(catalogue, wish)
    fitting = [
        image
        for image in catalogue.images
        if image.runtime in runtimes
        and image.runtime in ADAPTERS
        and wish.runtime in (None, image.runtime)
        and image.serves(vendor, arch)
    ]
    if wish.image is None:
        yield from (image for image in fitting if not image.by_name)
    elif named is not None:
        yield from (image for image in fitting if image is named)
    elif fitting:
        like = next((image for image in fitting if not image.by_name), fitting[0])
        # ... but what that one needs is no word about this one
        update: dict[str, object] = dict.fromkeys(
            (
                "version",
                "at_least",
                "digest",
                "driver",
                "cuda",
                "kernel",
                "compressed_bytes",
                "size_bytes",
                "needs_source",
            )
        )
        update |= {"name": CUSTOM, "reference": wish.image, "machine": (), "source": "named by the user"}
        yield like.model_copy(update=update)


def no_image(variant: Variant, kinds: Sequence[Group]) -> str:
    """Why nothing can run these weights here."""
    where = ", ".join(f"{k[0].vendor} {k[0].arch or 'of unknown architecture'}" if k else "the CPU" for k in kinds)
    return f"no image runs {variant.format.value} weights of {variant.name} on {where}"
