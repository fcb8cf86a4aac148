"""A driver that is too old for images that would run on its GPU."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor import fixes
from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "driver_too_old"
SEVERITY = Severity.PROBLEM
NEEDS = ("facts", "images")
SOURCE = "a CUDA image needs a driver that speaks its CUDA version; the catalogue says which"


def check(machine: Machine) -> Iterator[Fault]:
    for gpu in machine.gpus("nvidia"):
        mine = [image for image in machine.images if image.pci == gpu.pci]
        old = [image for image in mine if image.unmet == CODE]
        if not old:
            continue
        what = f"{gpu.driver}, CUDA {gpu.cuda}" if gpu.cuda else f"{gpu.driver}"
        yield Fault(
            f"the driver of GPU {gpu.pci} ({what}) is too old for {', '.join(image.name for image in old)}",
            {"driver": gpu.driver, "cuda": gpu.cuda, "images": {image.name: image.text for image in old}},
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
