"""What an image needs of a host, compared with what the host is. Pure.

What is not known of the host is not held against the image: it is tried.
"""

from __future__ import annotations

from dataclasses import dataclass

from hosts.facts import Accelerator, HostFacts
from orchestrator.catalogue.types import ImageEntry, version_numbers

_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class Unmet:
    """A need that the host does not meet: `needed` and `found` are versions or architectures."""

    code: str
    text: str
    needed: str
    found: str
    source: str | None = None


def machine(arch: str) -> str:
    """A processor's architecture in the words of images: `x86_64` is `amd64`."""
    return _MACHINES.get(arch, arch)


def unmet(image: ImageEntry, facts: HostFacts, device: Accelerator | None) -> Unmet | None:
    """The first need of an image that this host, with this device, does not meet; None when all are met or unknown."""
    have = machine(facts.cpu.arch)
    if image.machine and facts.cpu.arch and have not in image.machine:
        offered = ", ".join(image.machine)
        text = f"{image.name} is built for {offered}, and this host is {have}"
        return Unmet("arch_mismatch", text, offered, have, image.needs_source)
    driver = None if device is None else device.driver
    if image.driver is not None and driver is not None and _older(driver, image.driver):
        text = f"{image.name} needs driver {image.driver} or newer, and {_name(device)} has {driver}"
        return Unmet("driver_too_old", text, image.driver, driver, image.needs_source)
    speaks = None if device is None else device.cuda
    if image.cuda is not None and speaks is not None and _older(_major(speaks), _major(image.cuda)):
        text = f"{image.name} is built with CUDA {image.cuda}, and the driver of {_name(device)} speaks CUDA {speaks}"
        return Unmet("driver_too_old", text, image.cuda, speaks, image.needs_source)
    if image.kernel is not None and facts.kernel is not None and _older(facts.kernel, image.kernel):
        text = f"{image.name} needs kernel {image.kernel} or newer, and this host runs {facts.kernel}"
        return Unmet("kernel_too_old", text, image.kernel, facts.kernel, image.needs_source)
    return None


def _name(device: Accelerator | None) -> str:
    return "the host" if device is None else device.name or f"the GPU at {device.pci}"


def _major(version: str) -> str:
    return version.split(".", 1)[0]


def _older(have: str, need: str) -> bool:
    """Whether `have` is before `need`; a version without a number is not known, so it is not."""
    numbers = version_numbers(have)
    return bool(numbers) and numbers < version_numbers(need)
