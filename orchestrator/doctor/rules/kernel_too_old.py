"""A kernel that is unstable on this GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator

from orchestrator.doctor import fixes
from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "kernel_too_old"
SEVERITY = Severity.PROBLEM
NEEDS = ("facts",)
SUPERSEDES = ("kernel_too_old",)
SOURCE = "kernels before 6.18.4 are unstable on gfx1151 (kyuz0 Strix Halo toolboxes; ROCm issue 5724)"
OLDEST = {"gfx1151": (6, 18, 4)}


def check(machine: Machine) -> Iterator[Fault]:
    release = machine.facts.kernel or ""
    numbers = tuple(int(n) for n in re.findall(r"\d+", release.partition("-")[0])[:3])
    for gpu in machine.facts.accelerators:
        oldest = OLDEST.get(gpu.arch or "")
        if oldest is None or not numbers or numbers >= oldest:
            continue
        text = ".".join(str(part) for part in oldest)
        yield Fault(
            f"kernel {release} is unstable on {gpu.arch}: it needs {text} or newer",
            {"kernel": release, "arch": gpu.arch, "pci": gpu.pci, "needs": text},
            (_command(machine), "systemctl reboot"),
        )


def _command(machine: Machine) -> str:
    if fixes.family(machine.system) == "debian" and "ubuntu" not in machine.system.ids:
        return 'apt-get install -t "$(. /etc/os-release && echo $VERSION_CODENAME)-backports" linux-image-amd64'
    return fixes.upgrade(machine.system, "linux-image-generic", fedora="kernel", arch="linux", suse="kernel-default")
