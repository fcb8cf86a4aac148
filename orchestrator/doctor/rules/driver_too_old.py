"""A driver that is too old for images that would run on its GPU."""

from __future__ import annotations

from collections.abc import Iterator

from hosts.facts import Accelerator
from orchestrator.catalogue.types import version_numbers
from orchestrator.doctor import fixes
from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import ImageNeed, Machine

CODE = "driver_too_old"
SEVERITY = Severity.PROBLEM
NEEDS = ("facts", "images")
SOURCE = "a CUDA image needs a driver that speaks its CUDA version; the catalogue says which"


def check(machine: Machine) -> Iterator[Fault]:
    for gpu in machine.gpus("nvidia"):
        mine = [image for image in machine.images if image.pci == gpu.pci]
        old = [image for image in mine if _too_new(image, gpu)]
        if not old:
            continue
        needs = max((image.cuda for image in old if image.cuda), key=version_numbers, default=None)
        what = f"CUDA {gpu.cuda}" if gpu.cuda else f"version {gpu.driver}"
        yield Fault(
            f"the driver of GPU {gpu.pci} ({what}) is too old for {', '.join(image.name for image in old)}",
            {
                "driver": gpu.driver,
                "driver_cuda": gpu.cuda,
                "needs_cuda": needs,
                "images": {image.name: image.cuda or image.driver for image in old},
            },
            (
                fixes.upgrade(
                    machine.system,
                    "nvidia-driver",
                    fedora="akmod-nvidia",
                    arch="nvidia-open",
                    suse="nvidia-open-driver-G06-signed-kmp-default",
                ),
                "systemctl reboot",
            ),
            None if len(old) == len(mine) else Severity.WARNING,
        )


def _too_new(image: ImageNeed, gpu: Accelerator) -> bool:
    """Within a major version CUDA is compatible: only the major number of an image counts."""
    if image.driver is not None and gpu.driver is not None:
        return version_numbers(gpu.driver) < version_numbers(image.driver)
    if image.cuda is None or gpu.cuda is None:
        return False
    return version_numbers(gpu.cuda)[:1] < version_numbers(image.cuda)[:1]
