"""Which devices a model needs before it may be planned at all. Pure.

A machine that comes up without its GPU (a driver that loads late, a CDI specification that is not
written yet, a card that fell off the bus) looks like a machine that never had one, and the planner
would put the model onto the CPU, or refuse it for good. So a model *needs* a device when

- it was proven on one the last time it served, or is planned for one now: that one, or another of the
  same vendor and architecture; or
- its configuration names an image, or a runtime, that only a GPU can run.

A configuration that names an image for the CPU needs none, whatever was before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hosts.facts import QUARANTINED, Accelerator, HostFacts
from orchestrator.catalogue.types import ImageEntry
from orchestrator.models import ModelEntry
from orchestrator.plan import Plan

_VENDORS = (("nvidia.com/", "nvidia"), ("/dev/nvidia", "nvidia"), ("amd.com/", "amd"), ("/dev/kfd", "amd"))


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator as it is remembered. None matches any."""

    vendor: str
    arch: str | None = None
    pci: str | None = None
    name: str | None = None

    def __str__(self) -> str:
        what = self.name or " ".join(filter(None, (self.vendor.upper(), self.arch)))
        return what if self.pci is None else f"{what} at {self.pci}"

    @classmethod
    def of(cls, gpu: Accelerator) -> Device:
        return cls(gpu.vendor, gpu.arch, gpu.pci, gpu.name)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Device:
        """Raises KeyError, TypeError for something else."""
        return cls(str(data["vendor"]), data.get("arch"), data.get("pci"), data.get("name"))


@dataclass(frozen=True, slots=True)
class Need:
    """All of `devices`; without any, one accelerator that one of `images` is made for. `why` says who wants it."""

    devices: tuple[Device, ...]
    images: tuple[ImageEntry, ...]
    why: str


def used_by(plan: Plan, facts: HostFacts) -> tuple[Device, ...]:
    """The accelerators that a plan takes; where the host does not show them (any more), what their names tell."""
    # all of an accelerator's names: AMD GPUs of one machine share /dev/kfd
    taken = tuple(Device.of(a) for a in facts.accelerators if a.devices and set(a.devices) <= set(plan.devices))
    if taken or not plan.devices:
        return taken
    vendors = {vendor for name in plan.devices for start, vendor in _VENDORS if name.startswith(start)}
    return tuple(Device(vendor) for vendor in sorted(vendors))


def absent(plan: Plan, facts: HostFacts) -> tuple[str, ...]:
    """The plan's device names that no accelerator offers now."""
    offered = {name for a in _usable(facts) for name in a.devices}
    return tuple(name for name in plan.devices if name not in offered)


def need(
    entry: ModelEntry, image: str | None, images: Sequence[ImageEntry], last: Sequence[Device], why: str
) -> Need | None:
    """What this model needs; None when the CPU does.

    `image` is what the model or the host's defaults name, `last` the devices that it ran on, or is planned
    for, and `why` how that is known.
    """
    named = next((i for i in images if image is not None and image in (i.name, i.reference)), None)
    if named is not None and named.vendor is None:
        return None
    if last:
        return Need(tuple(last), (), why)
    if named is not None:
        return Need((), (named,), f"its image {named.name} is for {_vendors((named,))}")
    if entry.runtime is None or image is not None:
        return None
    able = tuple(i for i in images if i.runtime is entry.runtime and not i.by_name)
    if not able or any(i.vendor is None for i in able):
        return None
    return Need((), able, f"its runtime {entry.runtime.value} has images for {_vendors(able)} alone")


def missing(wanted: Need, facts: HostFacts) -> str | None:
    """What is not there, in words; None when all is."""
    left = list(_usable(facts))
    if not wanted.devices:
        if any(i.serves(a.vendor, a.arch) for i in wanted.images for a in left):
            return None
        return f"a GPU of {_vendors(wanted.images)}"
    lost = list(wanted.devices)
    for matches in (_same_place, _same_kind):
        for device in tuple(lost):
            found = next((a for a in left if matches(device, a)), None)
            if found is not None:
                lost.remove(device)
                left.remove(found)
    return ", ".join(str(device) for device in lost) or None


def _same_place(device: Device, gpu: Accelerator) -> bool:
    return device.pci == gpu.pci and device.vendor == gpu.vendor


def _same_kind(device: Device, gpu: Accelerator) -> bool:
    """The same in another slot: PCI addresses change with a new card or firmware."""
    return device.vendor == gpu.vendor and device.arch in (None, gpu.arch)


def nearly(wanted: Need, facts: HostFacts) -> str | None:
    """What the host shows of it that no container can be given yet; None for nothing."""
    vendors = {d.vendor for d in wanted.devices} | {i.vendor for i in wanted.images}
    seen = [a for a in facts.accelerators if a.vendor in vendors and a not in _usable(facts)]
    if not seen:
        return None
    names = ", ".join(str(Device.of(a)) for a in seen)
    lost = any(a.details.get("health") == "lost" for a in seen)
    held = next((a.details[QUARANTINED] for a in seen if QUARANTINED in a.details), None)
    if held is not None:
        return f"{names} is left alone for now: {held}"
    return f"{names} {'is lost' if lost else 'has no device node or CDI name yet'}"


def _usable(facts: HostFacts) -> tuple[Accelerator, ...]:
    """Accelerators that work, and that a container can be given."""
    return tuple(
        a
        for a in facts.accelerators
        if a.devices and a.details.get("health") != "lost" and QUARANTINED not in a.details
    )


def _vendors(images: Sequence[ImageEntry]) -> str:
    return " or ".join(sorted({(i.vendor or "the CPU").upper() for i in images}))
